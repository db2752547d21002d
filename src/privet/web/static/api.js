// Questions to the server. Of each kind only the latest counts: the older one is given up.

const running = new Map();

/** The answer to a question, or null if a later one of its kind has taken its place. */
export async function ask(kind, controls) {
  running.get(kind)?.abort();
  const mine = new AbortController();
  running.set(kind, mine);
  try {
    const answer = await fetch(`/api/${kind}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(controls),
      signal: mine.signal,
    });
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    return running.get(kind) === mine ? found : null;
  } catch (error) {
    if (mine.signal.aborted) return null;
    throw error instanceof TypeError ? new Error("The server does not answer. Is privet serve still running?") : error;
  }
}

export function giveUp(kind) {
  running.get(kind)?.abort();
}

export async function get(kind) {
  const answer = await fetch(`/api/${kind}`);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}
