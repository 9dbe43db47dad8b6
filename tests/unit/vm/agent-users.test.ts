/** Look-ups of a guest's users, whose bytes may be hostile, against a scripted agent. */
import { describe, expect, test } from "bun:test";
import { constants } from "node:os";
import { type AgentError, AgentProtocolError } from "../../../src/vm/agent/agent.ts";
import { packIntegers } from "../../../src/vm/agent/frames.ts";
import { AgentFrame, FileOp, HostFrame } from "../../../src/vm/agent/protocol.ts";
import { done, failure, openAgentFiles, problem } from "../../support/guests/agent-script.ts";

const NEVER = new AbortController().signal;

interface UserFields {
  readonly home?: string;
  readonly groups?: readonly number[];
  /** the number that the record announces */
  readonly groupCount?: number;
}

/** A record of the user `app`. */
function userRecord({ home = "/home/app", groups = [], groupCount = groups.length }: UserFields = {}): Buffer {
  const texts = ["app", home, "/bin/sh"].map((value) => Buffer.from(value, "latin1"));
  const rest = Buffer.concat([packIntegers(...groups.map((gid) => [32, gid] as const)), ...texts]);
  const lengths = texts.map(({ byteLength }) => [16, byteLength] as const);
  const head = packIntegers([32, 20 + rest.byteLength], [32, 7], [32, 8], ...lengths, [16, groupCount]);
  return Buffer.concat([head, rest]);
}

describe("a look-up", () => {
  test("gives what the guest's passwd has", async () => {
    const { guest, files, output } = await openAgentFiles();
    const asked = files.user("app", { signal: NEVER });
    const { session, payload } = await guest.frame(HostFrame.fileOpen);
    expect([payload.readUInt16LE(4), payload.subarray(52).toString("latin1")]).toEqual([
      FileOp.user,
      "\x03\x00app\x01\x00/",
    ]);
    output(session, userRecord({ groups: [3, 4] }));
    guest.send(AgentFrame.done, session, done());
    expect(await asked).toEqual({ name: "app", uid: 7, gid: 8, home: "/home/app", shell: "/bin/sh" } as never);
  });

  test("of a user that the guest does not have", async () => {
    const { guest, files } = await openAgentFiles();
    const asked = failure(files.user("ghost", { signal: NEVER }));
    const { session } = await guest.frame(HostFrame.fileOpen);
    guest.send(AgentFrame.error, session, problem(constants.errno.ENOENT, "user ghost"));
    expect(((await asked) as AgentError).errno).toBe(constants.errno.ENOENT);
  });
});

describe("a hostile record", () => {
  test.each([
    ["without an absolute home", userRecord({ home: "home" })],
    ["with a NUL in the home", userRecord({ home: "/\0" })],
    ["with more groups than bytes", userRecord({ groupCount: 40 })],
    ["of no user after that of one", Buffer.concat([userRecord(), userRecord()])],
  ])("%s closes the stream", async (_name, record) => {
    const { guest, agent, files, output } = await openAgentFiles();
    const asked = failure(files.user("app", { signal: NEVER }));
    const { session } = await guest.frame(HostFrame.fileOpen);
    output(session, record);
    guest.send(AgentFrame.done, session, done());
    expect(await asked).toBeInstanceOf(AgentProtocolError);
    expect(await failure(agent.flush())).toBeInstanceOf(AgentProtocolError);
  });
});
