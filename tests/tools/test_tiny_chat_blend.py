"""Blends of tiny-chat's weights lie between both, and are rounded as when they are saved."""

import torch

from tools.tiny_chat.blend import blend
from tools.tiny_chat.model import TinyChat, TinyChatConfig
from tools.tiny_chat.train import initialised


def test_a_blend_has_its_share_of_both_and_each_end_is_one_of_them() -> None:
    torch.manual_seed(1)
    old, new = (
        {
            name: tensor.to(torch.bfloat16).float()
            for name, tensor in initialised(TinyChat(TinyChatConfig())).state_dict().items()
        }
        for _ in range(2)
    )
    name = max(old, key=lambda one: old[one].numel())
    assert not torch.equal(old[name], new[name])
    for share, expected in ((0.0, old), (1.0, new)):
        assert torch.equal(blend(old, new, share).state_dict()[name], expected[name])
    middle = blend(old, new, 0.5).state_dict()[name]
    assert torch.equal(middle, ((old[name] + new[name]) / 2).to(torch.bfloat16).float())
