"""What papers print though no proof covers it: methods, accountants and clipping rules, labelled `claimed`.

Nothing in the product imports this: the registries read a module of it when one of its names is asked for.
"""
