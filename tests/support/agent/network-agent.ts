import { expect } from "bun:test";
import { connect, type Socket } from "node:net";
import { AgentFrame, HostFrame, NetworkFlag } from "../../../src/vm/agent/protocol.ts";
import { type Frame, frame, NativeAgent, u32 } from "./native-agent.ts";
import { ipv4, ipv6, Kernel } from "./packets.ts";

export const CLIENT = ipv4("192.0.2.2");
export const OUTSIDE = ipv4("1.2.3.4");
export const CLIENT_IPV6 = ipv6("fd00:00c0:ffee:0000:0000:0000:0000:0002");
export const OUTSIDE_IPV6 = ipv6("2001:0db8:0000:0000:0000:0000:0000:0001");

/** The ends of a SYN of the guest's program. */
export const ends = (fromPort: number, to: Uint8Array = OUTSIDE, toPort = 443) => ({
  from: to.length === 4 ? CLIENT : CLIENT_IPV6,
  to,
  fromPort,
  toPort,
});

/** An agent with a network, and the kernel's side of it. */
export async function startNetwork(): Promise<{ agent: NativeAgent; kernel: Kernel } & AsyncDisposable> {
  await using stack = new AsyncDisposableStack();
  const agent = stack.use(await NativeAgent.mounted());
  agent.send(frame(HostFrame.network, 0, u32(NetworkFlag.on)));
  await next(agent, AgentFrame.done);
  const kernel = stack.use(await Kernel.open(agent));
  const owned = stack.move();
  return { agent, kernel, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

export async function next(agent: NativeAgent, type: number): Promise<Frame> {
  const answer = await agent.next();
  if (answer.type !== type) throw new Error(`a frame of type ${answer.type}: ${answer.payload.toString("hex")}`);
  return answer;
}

/** Checks the agent's request: port, kind, and the host's bytes. */
export function requestOf({ payload }: Frame): [port: number, kind: number, host: Buffer] {
  return [payload.readUInt16LE(0), payload.readUInt16LE(2), payload.subarray(4)];
}

/** Checks that no packet was sent before the answer to a SYNC. */
export async function expectSilence(agent: NativeAgent, kernel: Kernel): Promise<void> {
  expect((await agent.sync()).type).toBe(AgentFrame.synced);
  expect(kernel.received()).toEqual([]);
}

/** Opens a connection as a program would, from a port that is known before. */
export function dial(port: number, localPort: number): Promise<Socket> {
  const socket = connect({ port, host: "127.0.0.1", localPort, allowHalfOpen: true });
  return new Promise((done, fail) => {
    // Once connected, an error shows how the other side ended it.
    socket.on("error", fail);
    socket.once("connect", () => done(socket));
  });
}
