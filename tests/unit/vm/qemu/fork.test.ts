import { expect, test } from "bun:test";
import { type ForkContext, QemuFork } from "../../../../src/vm/qemu/fork.ts";
import { throwing } from "../../../support/failures.ts";

const ANSWERS: Record<string, unknown> = {
  "query-commands": [{ name: "stop" }, { name: "xen-save-devices-state" }],
  "qom-get": "pc-q35-7.2-machine",
  "query-version": { qemu: { major: 7, minor: 2, micro: 22 }, package: "" },
  "human-monitor-command": "Host virtual address for 0x0 (m0) is 0x7f0000000000\r\n",
};

/** Prepares a fork of a machine whose monitor gives these answers. Returns the commands that it got. */
async function preparation(answers: Record<string, unknown>, pids: readonly number[] = [7]) {
  const commands: string[] = [];
  const execute = (command: string) => {
    commands.push(command);
    return Promise.resolve({ ...ANSWERS, ...answers }[command]);
  };
  const cgroup = { pids: () => Promise.resolve([...pids]) };
  const machine = { pid: 7, shape: { vcpus: 1, memoryBytes: 4096 }, cgroup, qmp: { execute } };
  const context = { machine, disks: [], program: "/nonexistent", acceleration: "tcg" } as unknown as ForkContext;
  const options = { scratchPath: "/nonexistent", signal: new AbortController().signal };
  return { error: await throwing(QemuFork.prepare(context, options)), commands };
}

test.each([
  [
    "has no command for it",
    { "query-commands": [{ name: "stop" }] },
    "this QEMU cannot fork a machine: it has no xen-save",
  ],
  ["answers nonsense about its commands", { "query-commands": "none" }, "this QEMU cannot fork a machine"],
  ["does not name its machine", { "qom-get": { a: 1 } }, "QEMU did not name its machine type"],
  ["has no text for its machine", { "qom-get": { toString: null } }, "QEMU did not name its machine type"],
  ["has no text for its memory", { "human-monitor-command": [{ toString: null }] }, "where the guest's memory is"],
  ["names a machine that is too long", { "qom-get": `${"a".repeat(80)}-machine` }, "did not name its machine type"],
  ["does not say where memory is", { "human-monitor-command": "No memory" }, "where the guest's memory is"],
  ["has other memory there", { "human-monitor-command": "Host virtual address for 0x0 (pc.bios) is 0x7f00" }, "where"],
])("a QEMU that %s cannot fork, and is not paused", async (_what, answers, reason) => {
  const { error, commands } = await preparation(answers);
  expect(error).toThrow(reason);
  expect(commands).not.toContain("stop");
});

test("a machine whose monitor has ended is not forked, whichever process has its pid now", async () => {
  expect((await preparation({}, [8])).error).toThrow("the machine has ended");
});
