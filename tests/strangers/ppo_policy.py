"""Reinforcement learning: PPO's clipped loss of a policy with a value head, logged by `.item()`."""

import torch
from torch import nn
from torch.distributions import Categorical


class ActorCritic(nn.Module):
    def __init__(self, actions=6, width=128):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(4, 16, 8, 4),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 36, width),
            nn.ReLU(),
        )
        self.policy, self.value = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, observations):
        x = self.features(observations / 255)
        return Categorical(logits=self.policy(x)), self.value(x).squeeze(1)


def make_loss(micro_batch=4):
    model, log = ActorCritic(), {}
    observations = 255 * torch.rand(16 * micro_batch, 4, 64, 64)
    actions, returns = torch.randint(6, (len(observations),)), torch.randn(len(observations))
    old_log_prob, advantage = -1.8 + 0.1 * torch.randn(len(actions)), torch.randn(len(actions))

    def loss():
        policy, value = model(observations)
        ratio = (policy.log_prob(actions) - old_log_prob).exp()
        clipped = ratio.clamp(0.8, 1.2)
        gain = torch.minimum(ratio * advantage, clipped * advantage).mean()
        entropy, error = policy.entropy().mean(), (value - returns).square().mean()
        log.update(
            gain=gain.item(),
            entropy=entropy.item(),
            clipped=(ratio != clipped).float().mean().item(),
        )
        return 0.5 * error - gain - 0.01 * entropy

    return loss, model
