/** A fork with memory of a program of the real world, which has state and a connection. */
import { expect, setDefaultTimeout, test } from "bun:test";
import { ALL } from "../support/network/guest.ts";
import { ring } from "../support/network/ring.ts";
import { PEER_PORTS } from "../support/network/site/site-peers.ts";
import { SandboxClient, type WireSandbox } from "../support/sandboxes/client.ts";
import { until } from "../support/waiting.ts";

setDefaultTimeout(600_000);

const MIB = 1_048_576;
const FORKS_COUNT = 8;
/** Each emulated machine translates the interpreter for itself. */
const ANSWER_MS_MAX = 240_000;

/** Has 200 MiB and a connection, and changes its state with each line that it reads. */
const PROGRAM = `
import os, socket, sys
data = bytearray(os.urandom(1 << 20))
data *= 200
server = socket.create_connection(("peer.test", ${PEER_PORTS.echo}))
turn = 0
print("ready", sum(data[::4096]), flush=True)
for line in sys.stdin:
    turn += 1
    data[turn * 4096] = 0
    try:
        server.sendall(b"again")
        answer = server.recv(5).decode() or "end"
    except OSError as error:
        answer = type(error).__name__
    print(turn, line.strip(), sum(data[4096 * 100::4096]), answer, flush=True)
`;

async function outputOf(box: SandboxClient, spid: number): Promise<string> {
  const events = await box.events();
  const ended = events.filter((event) => event.spid === spid && ["exit", "stderr"].includes(event.type));
  expect(ended).toEqual([]);
  const outputs = events.filter((event) => event.spid === spid && event.type === "stdout");
  return outputs.map(({ data }) => String(data["content"])).join("");
}

test("a Python process with 200 MiB is forked into eight, and each continues with its own state", async () => {
  const { appliance, image } = ring();
  const parent = await SandboxClient.open(appliance, {
    ...{ image, name: "python", network: ALL, resources: { memory_bytes: 512 * MIB } },
  });
  const answer = await parent.post("processes", { command: "python3", args: ["-c", PROGRAM], stdin_open: true });
  expect([answer.status, answer.body]).toEqual([201, expect.anything()]);
  const { spid } = answer.body as { spid: number };
  /** Sends a word, and returns the whole line that follows. */
  const ask = async (box: SandboxClient, word: string): Promise<string[]> => {
    const path = `/sandboxes/${box.id}/processes/${spid}/stdin`;
    expect((await appliance.post(path, { content: `${word}\n` })).status).toBe(204);
    let line: string | undefined;
    const hasAnswered = async () => {
      line = new RegExp(`^\\d+ ${word} .*$`, "m").exec(`${await outputOf(box, spid)}`)?.[0];
      return line?.split(" ").length === 4;
    };
    await until(`${word} is answered`, hasAnswered, ANSWER_MS_MAX);
    return line?.split(" ") ?? [];
  };
  await until("it is ready", async () => (await outputOf(parent, spid)).includes("\n"), ANSWER_MS_MAX);
  const [, , state] = await ask(parent, "before");

  const { status, body } = await parent.post("fork?wait=60", { memory: true, count: FORKS_COUNT });
  expect([status, body]).toEqual([201, expect.anything()]);
  const { sandboxes, copied_bytes } = body as { sandboxes: WireSandbox[]; copied_bytes: number };
  expect(sandboxes).toHaveLength(FORKS_COUNT);
  expect(copied_bytes).toBeGreaterThan(200 * MIB);
  const forks = sandboxes.map(({ uuid }) => new SandboxClient(appliance, uuid));
  const answers = await Promise.all(forks.map((fork, at) => ask(fork, `fork${at}`)));
  // The second turn of each, with all of the memory; its connection was the parent's.
  expect(answers).toEqual(forks.map((_, at) => ["2", `fork${at}`, state ?? "", "ConnectionResetError"]));
  expect(await ask(parent, "after")).toEqual(["2", "after", state ?? "", "again"]);
  expect((await ask(forks[3] as SandboxClient, "once-more")).slice(0, 3)).toEqual(["3", "once-more", state ?? ""]);
  for (const box of [...forks, parent]) await box.end();
});
