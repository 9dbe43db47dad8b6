"""mini-swe-agent with its environment `contree`, which finds the appliance by the profile of the ConTree clients. Its own
deterministic model stands for a model's answers."""

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output

COMMANDS = ["pwd; echo one > file", "cat file; exit 3", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat file"]

environment = get_environment(
    {
        "environment_class": "contree",
        "contree_config": {},
        "image": "docker://docker.io/library/python:3.12",
        "cwd": "/testbed",
    }
)
model = DeterministicModel(outputs=[make_output("step", [{"command": command}]) for command in COMMANDS])
agent = DefaultAgent(model, environment, system_template="", instance_template="{{task}}", step_limit=10, cost_limit=100)
ended = agent.run("task")
assert ended["exit_status"] == "Submitted" and ended["submission"] == "one\n", ended
observed = [message["content"] for message in agent.messages if message["role"] == "user"][1:]
assert "/testbed\n" in observed[0] and "<returncode>3</returncode>" in observed[1], observed
print("end")
