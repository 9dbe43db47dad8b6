import { expect, test } from "bun:test";
import type { NetworkRequest, NetworkVerdict } from "../../../src/domain/network.ts";
import { AuditRecorder, ENTRIES_COUNT_MAX } from "../../../src/supervisor/network/audit.ts";
import { InstanceNetwork, type NetworkRecord } from "../../../src/supervisor/network/instance-network.ts";
import { CHANGES_COUNT_MAX } from "../../../src/supervisor/network/policies.ts";
import { StandInGate } from "../../support/guests/stand-in-gate.ts";
import { DEAF_LISTENER } from "../../support/instance-network.ts";
import { NETWORK_SETTINGS } from "../../support/network-scene.ts";
import { seededRandom, seedOfTests } from "../../support/random.ts";

const VERDICTS: readonly NetworkVerdict[] = ["allowed", "allowed", "denied", "limited", "no_such_name", "unreachable"];
const copyOf = <T>(value: T): T => JSON.parse(JSON.stringify(value)) as T;

test("an audit that is recorded and continued at any point is the audit of one recorder", () => {
  const random = seededRandom(seedOfTests());
  let now = 0;
  const firsts: [string[], string[]] = [[], []];
  const recorderOf = (side: 0 | 1, from?: ReturnType<AuditRecorder["record"]>) =>
    new AuditRecorder(
      () => now,
      ({ host, port, verdict }) => firsts[side].push(`${verdict} ${host} ${port}`),
      from,
    );
  const whole = recorderOf(0);
  let cut = recorderOf(1);
  for (let step = 0; step < 8 * ENTRIES_COUNT_MAX; step++) {
    now += 1;
    const key = keyFrom(random);
    const addresses = [`192.0.2.${random.below(200)}`];
    const bytes = random.below(100);
    for (const recorder of [whole, cut]) {
      const tally = recorder.count(key, addresses);
      tally.sentBytes += bytes;
      recorder.touch(tally);
    }
    if (random.below(50) === 0) cut = recorderOf(1, copyOf(cut.record()));
  }
  expect(cut.audit(true)).toEqual(whole.audit(true));
  expect(firsts[1]).toEqual(firsts[0]);
  expect(whole.audit(true).truncated).toBe(true);
});

function keyFrom(random: ReturnType<typeof seededRandom>) {
  const verdict = VERDICTS[random.below(VERDICTS.length)] ?? "allowed";
  const host = `h${random.below(800)}.example`;
  return { host, port: random.below(3) === 0 ? null : 1 + random.below(3), verdict };
}

const RULES: NetworkRequest = { allow: [{ host: "a.example", ports: [443] }], tls: "sni", record: false };
const network = (policy: NetworkRequest | null, from?: NetworkRecord) =>
  new InstanceNetwork({
    ...{ gate: new StandInGate(), settings: NETWORK_SETTINGS, policy, account: "a", listener: DEAF_LISTENER },
    ...{ clock: () => 1000, ...(from === undefined ? {} : { from }) },
  });

test("a network that is continued has the policy, the history and the limits of the one before", async () => {
  await using first = network(RULES);
  first.change(null);
  first.change({ ...RULES, record: true });
  await using second = network(RULES, copyOf(first.record()));
  expect(second.policy).toEqual({ ...RULES, record: true });
  expect(second.audit()).toEqual(first.audit());
  first.change(RULES);
  second.change(RULES);
  expect(second.audit()).toEqual(first.audit());
  expect(second.record()).toEqual(first.record());
});

test("an instance that has lost its network has had one, also when it is continued", async () => {
  await using first = network(RULES);
  first.change(null);
  await using second = network(RULES, copyOf(first.record()));
  expect([second.policy, second.wasOn]).toEqual([null, true]);
  await using never = network(null, copyOf(network(null).record()));
  expect([never.wasOn, never.audit()]).toEqual([false, null]);
});

test("the changes of a network are counted over all who continue it", async () => {
  await using first = network(RULES);
  for (let count = 1; count < CHANGES_COUNT_MAX; count++) first.change(count % 2 === 0 ? RULES : null);
  await using second = network(RULES, copyOf(first.record()));
  second.change(RULES);
  expect(() => second.change(null)).toThrow("changed too often");
});
