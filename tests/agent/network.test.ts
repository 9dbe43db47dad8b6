import { describe, expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import {
  AgentFrame,
  CONNECTIONS_COUNT_MAX,
  HostFrame,
  NetworkFlag,
  Refusal,
  SESSION_GUEST_BIT,
} from "../../src/vm/agent/protocol.ts";
import { execute, frame, NativeAgent, parseError, u16, u32 } from "../support/agent/native-agent.ts";
import {
  CLIENT,
  CLIENT_IPV6,
  ends,
  expectSilence,
  next,
  OUTSIDE,
  OUTSIDE_IPV6,
  requestOf,
  startNetwork,
} from "../support/agent/network-agent.ts";
import {
  dnsQuestion,
  FLAG_ACK,
  FLAG_RST,
  FLAG_SYN,
  HELD_BYTES,
  heldSyn,
  ipv4,
  ipv6,
  Kernel,
  type Packet,
  PROTOCOL_ICMP,
  PROTOCOL_ICMPV6,
  PROTOCOL_TCP,
} from "../support/agent/packets.ts";
import { until } from "../support/waiting.ts";

const ERRNO_NO_SUCH_CALL = 38;
const TYPE_A = 1;
const RESPONSE_NO_NAME = 3;

describe("without NETWORK", () => {
  test("a connection has no route and a name does not exist, and the host hears nothing", async () => {
    await using agent = await NativeAgent.mounted();
    using kernel = await Kernel.open(agent);
    kernel.hold(heldSyn(ends(4000)));
    expect(await kernel.packet()).toMatchObject({ protocol: PROTOCOL_ICMP, from: OUTSIDE, to: CLIENT });
    expect(await kernel.answer(dnsQuestion("example.com", TYPE_A))).toMatchObject({
      code: RESPONSE_NO_NAME,
      data: null,
    });
    expect((await kernel.answer(dnsQuestion("localhost", TYPE_A))).data).toEqual(ipv4("127.0.0.1"));
    await expectSilence(agent, kernel);
  });

  test("or after one without the flag it is off", async () => {
    await using both = await startNetwork();
    both.agent.send(frame(HostFrame.network, 0, u32(0)));
    await next(both.agent, AgentFrame.done);
    both.kernel.hold(heldSyn(ends(4000)));
    expect((await both.kernel.packet()).protocol).toBe(PROTOCOL_ICMP);
    await expectSilence(both.agent, both.kernel);
  });
});

test("a network that could not be set up is an error of NETWORK, and of nothing else", async () => {
  await using agent = await NativeAgent.start((directory) => writeFileSync(join(directory, "no-network"), ""));
  agent.send(frame(HostFrame.network, 0, u32(NetworkFlag.on)));
  expect(parseError(await agent.next())).toEqual({
    errno: ERRNO_NO_SUCH_CALL,
    text: "programs of the network: Function not implemented",
  });
  agent.send(frame(HostFrame.mount, 1, u16(1), u16(1)));
  await next(agent, AgentFrame.done);
  expect((await execute(agent, { argv: ["true"] })).exitCode).toBe(0);
});

describe("a held SYN", () => {
  test("is a request with a session of its own, with the address as it is", async () => {
    await using both = await startNetwork();
    both.kernel.hold(heldSyn(ends(4000)));
    both.kernel.hold(heldSyn(ends(4001, OUTSIDE_IPV6, 80)));
    const first = await next(both.agent, AgentFrame.netOpen);
    const second = await next(both.agent, AgentFrame.netOpen);
    expect(requestOf(first)).toEqual([443, 4, OUTSIDE]);
    expect(requestOf(second)).toEqual([80, 6, OUTSIDE_IPV6]);
    expect(first.session).toBeGreaterThanOrEqual(SESSION_GUEST_BIT);
    expect(second.session).toBeGreaterThan(first.session);
  });

  test("is sent again when the host has connected, with a checksum", async () => {
    await using both = await startNetwork();
    for (const [port, to] of [
      [4000, OUTSIDE],
      [4001, OUTSIDE_IPV6],
    ] as const) {
      const record = heldSyn(ends(port, to), 77, Buffer.from([2, 4, 5, 0xb4, 1, 3, 3, 7]));
      both.kernel.hold(record);
      const { session } = await next(both.agent, AgentFrame.netOpen);
      both.agent.send(frame(HostFrame.netAccept, session));
      const packet = await both.kernel.packet();
      expect(packet).toMatchObject({ protocol: PROTOCOL_TCP, to: Buffer.from(to) });
      const sent = Buffer.from(packet.payload);
      sent.writeUInt16BE(0, 16);
      expect(sent.equals(record.subarray(40, 68))).toBe(true);
    }
  });

  test("that the kernel repeats is not a second request, and is sent once more when the host has connected", async () => {
    await using both = await startNetwork();
    const record = heldSyn(ends(4000));
    for (let time = 0; time < 3; time++) both.kernel.hold(record);
    const { session } = await next(both.agent, AgentFrame.netOpen);
    await expectSilence(both.agent, both.kernel);
    both.agent.send(frame(HostFrame.netAccept, session));
    await both.kernel.packet();
    both.kernel.hold(record);
    expect((await both.kernel.packet()).protocol).toBe(PROTOCOL_TCP);
  });

  test("with another sequence number replaces the one that waits", async () => {
    await using both = await startNetwork();
    both.kernel.hold(heldSyn(ends(4000), 1));
    const { session } = await next(both.agent, AgentFrame.netOpen);
    both.kernel.hold(heldSyn(ends(4000), 2));
    await both.agent.sync();
    await until("the second SYN was read", async () => {
      both.kernel.hold(heldSyn(ends(4000), 2));
      return (await both.agent.sync()).type === AgentFrame.synced;
    });
    both.agent.send(frame(HostFrame.netAccept, session));
    expect((await both.kernel.packet()).payload.readUInt32BE(4)).toBe(2);
  });

  test("for an address of the guest is sent again without a request", async () => {
    await using both = await startNetwork();
    both.kernel.hold(heldSyn({ ...ends(4000, CLIENT), from: OUTSIDE }));
    expect((await both.kernel.packet()).to).toEqual(CLIENT);
    await expectSilence(both.agent, both.kernel);
  });

  const unreachable = (code: number, codeIpv6: number) => ({ reset: false, code, codeIpv6 });
  test.each([
    ["denied", Refusal.denied, unreachable(13, 1)],
    ["refused", Refusal.refused, { reset: true, code: 0, codeIpv6: 0 }],
    ["unreachable", Refusal.unreachable, unreachable(1, 3)],
    ["timed out", Refusal.timedOut, unreachable(1, 3)],
    ["of a name that is gone", Refusal.nameGone, unreachable(1, 3)],
    ["of no network", Refusal.noNetwork, unreachable(0, 0)],
  ])("that is %s gets that answer, also when it was repeated meanwhile", async (_name, reason, expected) => {
    await using both = await startNetwork();
    for (const to of [OUTSIDE, OUTSIDE_IPV6]) {
      const record = heldSyn(ends(4000, to), 0xffff_ffff);
      both.kernel.hold(record);
      const { session } = await next(both.agent, AgentFrame.netOpen);
      both.agent.send(frame(HostFrame.netRefuse, session, u32(reason)));
      const first = await both.kernel.packet();
      expectRefusal(first, to, record, expected);
      both.kernel.hold(record);
      expect(await both.kernel.packet()).toEqual(first);
      await expectSilence(both.agent, both.kernel);
    }
  });

  test("that is over a limit gets no answer, and is a new request when it is repeated", async () => {
    await using both = await startNetwork();
    const record = heldSyn(ends(4000));
    both.kernel.hold(record);
    const { session } = await next(both.agent, AgentFrame.netOpen);
    both.agent.send(frame(HostFrame.netRefuse, session, u32(Refusal.limited)));
    await expectSilence(both.agent, both.kernel);
    both.kernel.hold(record);
    expect((await next(both.agent, AgentFrame.netOpen)).session).not.toBe(session);
  });

  test("without room is dropped, and comes when there is room again", async () => {
    await using both = await startNetwork();
    const ids: number[] = [];
    for (let port = 1; port <= CONNECTIONS_COUNT_MAX; port++) {
      both.kernel.hold(heldSyn(ends(port)));
      ids.push((await next(both.agent, AgentFrame.netOpen)).session);
    }
    both.kernel.hold(heldSyn(ends(9000)));
    await expectSilence(both.agent, both.kernel);
    both.agent.send(frame(HostFrame.netDial, 3, u16(9), u16(0)));
    expect(parseError(await both.agent.next()).text).toBe(`${CONNECTIONS_COUNT_MAX} connections are alive`);
    both.agent.send(frame(HostFrame.netReset, ids[7] ?? 0));
    expect((await next(both.agent, AgentFrame.netReset)).session).toBe(ids[7] as number);
    expect((await both.kernel.packet()).payload[13]).toBe(FLAG_RST | FLAG_ACK);
    both.kernel.hold(heldSyn(ends(9000)));
    const later = await next(both.agent, AgentFrame.netOpen);
    expect(ids).not.toContain(later.session);
  });

  test("that is nonsense is dropped", async () => {
    await using both = await startNetwork();
    const good = heldSyn(ends(4000));
    const change = (at: number, value: number): Buffer => {
      const bytes = Buffer.from(good);
      bytes[at] = value;
      return bytes;
    };
    const bad = [
      Buffer.alloc(0),
      Buffer.alloc(HELD_BYTES, 0xff),
      change(0, 0x46),
      change(0, 0x65),
      change(9, 17),
      change(52, 0x50),
      change(53, FLAG_SYN | FLAG_ACK),
      change(53, FLAG_SYN | FLAG_RST),
      change(100, 61),
      change(100, 19),
      heldSyn(ends(0)),
      heldSyn(ends(4000, OUTSIDE, 0)),
      heldSyn(ends(4000, ipv6("0000:0000:0000:0000:0000:ffff:0102:0304"))),
    ];
    for (const bytes of bad) both.kernel.hold(bytes);
    both.kernel.hold(good);
    expect(requestOf(await next(both.agent, AgentFrame.netOpen))).toEqual([443, 4, OUTSIDE]);
    await expectSilence(both.agent, both.kernel);
  });
});

function expectRefusal(
  packet: Packet,
  outside: Uint8Array,
  record: Buffer,
  { reset, code, codeIpv6 }: { reset: boolean; code: number; codeIpv6: number },
): void {
  const isIpv4 = outside.length === 4;
  const { payload } = packet;
  expect([packet.from, packet.to]).toEqual([Buffer.from(outside), isIpv4 ? CLIENT : CLIENT_IPV6]);
  if (reset) {
    expect([payload.readUInt16BE(0), payload.readUInt16BE(2)]).toEqual([443, 4000]);
    // The sequence number after that of the SYN, which was the last one.
    expect([payload.readUInt32BE(8), payload[13]]).toEqual([0, FLAG_RST | FLAG_ACK]);
    return;
  }
  expect(packet.protocol).toBe(isIpv4 ? PROTOCOL_ICMP : PROTOCOL_ICMPV6);
  expect([payload[0], payload[1]]).toEqual(isIpv4 ? [3, code] : [1, codeIpv6]);
  // The kernel finds the socket by the addresses and ports in the quoted packet.
  expect(payload.subarray(isIpv4 ? 28 : 48)).toEqual(record.subarray(40, 60));
}
