/**
 * Sandboxes that write numbered lines, are forked, and paused and resumed with their memory or without, checkpointed, and written
 * to, while the daemon is killed and restarted, and monitors and the programs of both are killed: every acknowledged fact and every
 * line is there exactly once, and the end leaves no remains on the host. COPPICE_TEST_TALKING_SANDBOXES is the number of sandboxes
 * (4), COPPICE_TEST_TALKING_SECONDS the least time (40), COPPICE_TEST_TALKING_KILLS the least number of kills (8) and
 * COPPICE_TEST_TALKING_OUTAGES that of ends of the daemon, by kills and restarts (6); the more of these in that time, the shorter
 * are the waits between them. The seed is COPPICE_TEST_SEED, which a run prints.
 */

import { expect, test } from "bun:test";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { freePort } from "../../support/free-port.ts";
import { pushImage } from "../../support/images/images.ts";
import { http, Outside } from "../../support/outside.ts";
import { seededRandom, seedOfTests } from "../../support/random.ts";
import { talkerImage } from "../../support/talker/talker.ts";
import { pause, until } from "../../support/waiting.ts";
import { Acknowledged } from "../acknowledged.ts";
import { Faults, type Weights } from "../faults.ts";
import { errorsIn, leftBy } from "../remains.ts";
import { Box } from "./box.ts";
import { Disturbances } from "./disturbances.ts";
import { finish } from "./finish.ts";
import type { LogFollower } from "./follower.ts";
import type { Stage } from "./stage.ts";
import { step } from "./steps.ts";

const number = (name: string, otherwise: number): number =>
  Number(process.env[`COPPICE_TEST_TALKING_${name}`] ?? otherwise);
const sandboxes = number("SANDBOXES", 4);
const seconds = number("SECONDS", 40);
const killsMin = number("KILLS", 8);
const outagesMin = number("OUTAGES", 6);
const seed = seedOfTests();

const HOST = "www.site.test";
const MORE_MS = 1_800_000;
const SETTLE_MS_MAX = 400_000;
/** Steps of a child of a fork before it ends. */
const CHILD_STEPS_MAX = 6;
const CHILDREN_COUNT_MAX = Math.ceil(sandboxes / 4);
const FOLLOW_MS_MAX = 120_000;
/** The time for an end of the daemon and what comes before it. */
const OUTAGE_MS = (seconds * 1000) / outagesMin;
/** The longest wait for changes. Kills while most machines still start bring no sandbox further, and they never come to rest. */
const PROGRESS_MS_MAX = Math.max(8000, Math.min(1.5 * OUTAGE_MS, 30_000));
/** Changes without which a fault tells little. */
const PROGRESS = ["exec", "write", "read", "echo", "fetch", "checkpoint", "fork"];
/** Share of the sandboxes that may start or stop at most times. */
const MOVING_SHARE_MAX = 0.25;
/** A slow host takes longer, but not without an end. */
const SECONDS_MAX = Math.max(2 * seconds, 300);
const MANY_COUNT = 8;
/** Between two lines about the progress. */
const PROGRESS_MS = 60_000;
const WEIGHTS: Weights = {
  ...{ "kill daemon": 16, "abort daemon": 1, restart: 3, "kill monitor": 2, "kill gate": 1, "kill copier": 1 },
};

/** Many guests must not take all processors from the daemon: an emulated one of them writes a few thousand lines a second. */
const paceOf = (count: number): Stage["pace"] => (count > MANY_COUNT ? [300, 40, 150] : [400, 40, 25]);

/** Waits until something more was acknowledged and most sandboxes rest, or for the longest time that this may take. */
async function progress({ done, problems }: Stage, boxes: readonly Box[]): Promise<void> {
  const sum = () => PROGRESS.reduce((total, name) => total + (done[name] ?? 0), 0);
  const before = sum();
  const isCalm = () => boxes.filter(({ isMoving }) => isMoving).length <= boxes.length * MOVING_SHARE_MAX;
  const holds = () => (sum() >= before + boxes.length * MOVING_SHARE_MAX && isCalm()) || problems.length > 0;
  await until("changes are acknowledged", holds, PROGRESS_MS_MAX).catch(() => undefined);
}

/** The faults, changes and lines so far, as text. */
function summaryOf({ boxes, done }: Stage, { counts, kills }: Faults): string {
  const logs = [...boxes.values()].map(({ log }) => log);
  const sum = (of: (log: LogFollower) => number): number => logs.reduce((total, log) => total + of(log), 0);
  const [lines, events, cuts] = [sum((log) => log.lines), sum((log) => log.lastId + 1), sum((log) => log.cutsCount)];
  const read = `${lines} lines in ${events} events of ${logs.length} sandboxes, over ${cuts} connections`;
  return `${kills} kills: ${JSON.stringify(counts)}; ${JSON.stringify(done)}; ${read}`;
}

/** Gives a sandbox work until `isOver`, and its children, too. */
async function work(box: Box, isOver: () => boolean, children: { count: number }): Promise<void> {
  const { stage } = box;
  const own: Promise<void>[] = [];
  const child = async (one: Box) => {
    const steps = 1 + stage.random.below(CHILD_STEPS_MAX);
    for (let done = 0; done < steps && !isOver(); done++) await step(one, false);
    if (stage.problems.length === 0) await finish(one);
    children.count -= 1;
  };
  while (!isOver()) {
    await step(box, children.count < CHILDREN_COUNT_MAX);
    for (const one of box.children.splice(0)) {
      children.count += 1;
      own.push(child(one));
    }
  }
  await Promise.all(own);
}

test(
  `${sandboxes} sandboxes lose and repeat no line through ${outagesMin} ends of the daemon (seed ${seed})`,
  async () => {
    await using owned = new AsyncDisposableStack();
    const random = seededRandom(seed);
    const outside = owned.use(await Outside.start(HOST));
    const { port } = await outside.serve(http((path) => `you asked for ${path}`));
    const { appliance, registry } = owned.use(
      await BusyboxAppliance.start({
        flags: [
          ...["--listen-port", String(await freePort()), "--vm-cpu-budget", "64", "--sandboxes-keep-states", "1000"],
          "--leave-instances",
          ...["--network-allow", `${HOST}:*`, "--network-private", "127.0.0.0/8"],
          ...["--network-resolvers", outside.names.address],
        ],
      }),
    );
    const problems: string[] = [];
    const stage: Stage = {
      ...{ appliance, random, problems, facts: new Acknowledged(appliance), pace: paceOf(sandboxes) },
      image: await appliance.importImage(await pushImage(registry, "talker:1", await talkerImage())),
      ...{ boxes: new Map<string, Box>(), faults: new Disturbances(), done: {}, count: 0 },
      outside: { host: HOST, port },
    };
    owned.defer(() => {
      for (const { log } of stage.boxes.values()) log.stop();
    });
    const opened = await Promise.all(Array.from({ length: sandboxes }, () => Box.open(stage)));
    const first = opened.filter((box) => box !== null);
    expect(problems).toEqual([]);
    expect(first.length).toBe(sandboxes);

    const faults = new Faults({
      ...{ appliance, random, weights: WEIGHTS },
      onOutage: () => stage.faults.outage(),
      onGate: () => stage.faults.cut(),
      onMonitor: (instance) => stage.faults.kill(instance),
    });
    const startedAt = Date.now();
    const isEnough = () => faults.kills >= killsMin && faults.outages >= outagesMin;
    const isOver = () => {
      const ran = (Date.now() - startedAt) / 1000;
      return problems.length > 0 || ran > SECONDS_MAX || (ran > seconds && isEnough());
    };
    let saidAt = Date.now();
    const children = { count: 0 };
    const working = Promise.all(first.map((box) => work(box, isOver, children)));
    working.catch((error: Error) => problems.push(error.message));
    while (!isOver()) {
      // Nothing would be acknowledged between faults on a slow host otherwise. One of six faults does not wait.
      if (random.below(6) > 0) {
        await pause("faults come at any time", random.below(Math.ceil(OUTAGE_MS / 2)));
        await progress(stage, first);
      }
      const still = first
        .filter((box) => !box.isMoving)
        .map((box) => [box, box.instance, box.log.counts["adopted"] ?? 0] as const);
      const before = faults.outages;
      await faults.one();
      stage.faults.over();
      if (Date.now() > saidAt + PROGRESS_MS) {
        saidAt = Date.now();
        process.stderr.write(`${summaryOf(stage, faults)}\n`);
      }
      // The next fault may come before anything is adopted.
      if (faults.outages === before || random.below(2) === 0) continue;
      for (const [box, instance, adopted] of still) {
        const isSame = () => box.instance === instance && !box.isMoving && !box.isKilled;
        const isAdopted = () => (box.log.counts["adopted"] ?? 0) > adopted;
        await until(`${box.id} is adopted`, () => isAdopted() || !isSame(), FOLLOW_MS_MAX).catch((error: Error) =>
          box.problem(error.message),
        );
      }
    }
    await working;
    for (const box of first) if (problems.length === 0) await finish(box);
    if (problems.length === 0) {
      problems.push(...(await stage.facts.settle(SETTLE_MS_MAX)), ...(await stage.facts.check()));
    }
    process.stderr.write(`seed ${seed}: ${summaryOf(stage, faults)}\n`);
    if (problems.length > 0) process.stderr.write(errorsIn(appliance.log));
    expect(problems).toEqual([]);
    const left = await appliance.fetch("/sandboxes");
    expect(await left.json()).toEqual([]);
    await appliance.down();
    expect(await leftBy(appliance)).toEqual([]);
    await appliance.up();
    expect(await stage.facts.check()).toEqual([]);
    // A test without forks and pauses proves less than it says.
    expect(stage.done["exec"] ?? 0).toBeGreaterThan(0);
    expect([...stage.boxes.values()].filter(({ log }) => log.lines === 0)).toEqual([]);
    expect(isEnough()).toBe(true);
  },
  SECONDS_MAX * 1000 + MORE_MS,
);
