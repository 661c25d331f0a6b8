#!/usr/bin/env bash
# skrl 2.1.1 with Gymnasium 1.4.0: with gymnasium.make_vec, each reset is stored as a step of its own.
#
# People expect: the memory of an agent holds steps of the env alone, or leaves resets out.
# It does: Gymnasium's vector envs reset in the step behind an end (NEXT_STEP). skrl's trainer stores that
# step as any other: from the last observation of an episode to the first of the next one, with reward 0,
# not terminated, so that a terminal state is learned as one that goes on.
# Seen: behind the row that ended, a row that begins with its last observation, has reward 0.0 and
# terminated False, and leads to an observation near 0, where CartPole begins
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q skrl==2.1.1 "gymnasium[classic-control]==1.4.0" numpy==2.4.6 torch==2.13.0 tensorboard==2.21.0
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import gymnasium as gym
import torch
from skrl.agents.torch.dqn import DQN
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer

env = wrap_env(gym.make_vec("CartPole-v1", num_envs=1, vectorization_mode="sync"))
spaces = {"observation_space": env.observation_space, "action_space": env.action_space}


class Q(DeterministicMixin, Model):
    def __init__(self):
        Model.__init__(self, **spaces, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = torch.nn.Linear(4, 2)

    def compute(self, inputs, role=""):
        return self.net(inputs["observations"]), {}


torch.manual_seed(0)
memory = RandomMemory(memory_size=300, num_envs=1, device="cpu")
quiet = {"write_interval": 0, "checkpoint_interval": 0}
agent = DQN(
    models={"q_network": Q(), "target_q_network": Q()},
    memory=memory,
    **spaces,
    device="cpu",
    cfg={"learning_starts": 10**9, "experiment": quiet},
)
options = {"timesteps": 200, "headless": True, "disable_progressbar": True}
SequentialTrainer(env=env, agents=agent, cfg=options).train()
names = "observations", "next_observations", "rewards", "terminated"
now, then, reward, terminated = (memory.tensors[name][:200, 0] for name in names)
end = int(terminated[:, 0].nonzero()[0])
print("ended:", then[end].numpy().round(2), reward[end].item(), terminated[end].item())
behind = end + 1
print("behind:", now[behind].numpy().round(2), then[behind].numpy().round(2), reward[behind].item())
assert torch.equal(now[behind], then[end])
assert reward[behind].item() == 0 and not terminated[behind].item()
assert then[behind].abs().max() < 0.051  # where CartPole begins
PY
