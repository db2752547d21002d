"""A residual network whose examples do not see each other: group norm and weight standardisation, no batch norm."""

import torch.nn.functional as F
from torch import Tensor, nn

from privet import _check
from privet.errors import InvalidValue
from privet.models.base import check_image, register


class StandardConv(nn.Conv2d):
    """A convolution whose filters are brought to mean 0 and variance 1 before use (Qiao et al. 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        centred = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        spread = (centred.square().mean(dim=(1, 2, 3), keepdim=True) + 1e-5).rsqrt()
        return F.conv2d(x, centred * spread, self.bias, self.stride, self.padding)


class Block(nn.Module):
    """Two convolutions 3 x 3 with group norm, added to the input; a 1 x 1 convolution where the shape changes."""

    def __init__(self, *, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = StandardConv(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, after)
        self.conv2 = StandardConv(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, after)
        same = stride == 1 and before == after
        self.short = nn.Identity() if same else StandardConv(before, after, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.short(x))


@register("resnet")
def resnet(
    *, shape: tuple[int, int, int], classes: int, depth: int = 20, width: int = 16, groups: int = 8
) -> nn.Module:
    """A residual network of `depth` = 6 n + 2 layers in three stages of `width`, 2 `width` and 4 `width` filters.

    The plan of He et al. 2016 for CIFAR10, with group norm in the place of batch norm, which would mix examples, and
    standardised weights. It stands in for the pretrained NFNets of Auto DP-SGD (arXiv:2312.02400), Section 5, whose
    weights cannot be shipped. 272,282 parameters for 32 x 32 colour images of 10 classes.
    """
    check_image("resnet", shape, least=8)
    _check.whole(depth=depth, width=width, groups=groups)
    if depth < 8 or (depth - 2) % 6:
        raise InvalidValue(f"depth={depth} must be 6 n + 2. Each stage has n blocks of two layers. Take 8, 14 or 20.")
    if width % groups:
        raise InvalidValue(f"groups={groups} must divide width={width}. A group holds whole filters. Change one.")
    body: list[nn.Module] = [
        StandardConv(shape[0], width, 3, padding=1, bias=False), nn.GroupNorm(groups, width), nn.ReLU(),
    ]  # fmt: skip
    before = width
    for stage in range(3):
        after = width * 2**stage
        for place in range((depth - 2) // 6):
            stride = 2 if stage > 0 and place == 0 else 1
            body.append(Block(before=before, after=after, stride=stride, groups=groups))
            before = after
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
