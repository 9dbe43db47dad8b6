import { pause, until } from "../../support/waiting.ts";
import { BUSY } from "../requests.ts";
import { Box } from "./box.ts";
import { echo, fetchOutside } from "./connections.ts";
import type { Moment } from "./disturbances.ts";
import { requireFile } from "./finish.ts";
import type { FollowedProcess } from "./follower.ts";
import { counted, idOf } from "./stage.ts";

const TRY_AGAIN_MS = 100;
const WAIT_SECONDS = 30;
const PAUSED_MS_MAX = 1500;
const CONTENT_BYTES_MAX = 400;

type Step = (box: Box) => Promise<void>;

/** Each step, and how often it happens, relative to the others. */
const STEPS: readonly (readonly [number, Step])[] = [
  [4, exec],
  [3, write],
  [1, read],
  [1, echo],
  [1, fetchOutside],
  [1, checkpoint],
  [1, (box) => pauseAndResume(box, false)],
  [1, (box) => pauseAndResume(box, true)],
];
const FORK: readonly [number, Step] = [2, fork];

/** Does one random thing. */
export async function step(box: Box, canFork: boolean): Promise<void> {
  const all = [...STEPS, ...(canFork ? [FORK] : [])].flatMap(([weight, one]) => Array<Step>(weight).fill(one));
  await all[box.stage.random.below(all.length)]?.(box);
  await box.recover();
  if (!box.hasFailed) return;
  box.hasFailed = false;
  for (const path of box.files.keys()) await requireFile(box, path);
}

async function exec(box: Box): Promise<void> {
  box.stage.count += 1;
  const token = `token-${box.stage.count}`;
  const spid = await box.process({ command: `echo ${token}`, shell: true });
  if (spid === null) return;
  box.tokens.set(spid, token);
  counted(box.stage, "exec");
  await box.untilOver(() => (box.log.processes.get(spid)?.exit ?? null) !== null, `process ${spid} ends`);
}

async function write(box: Box): Promise<void> {
  const { random, faults } = box.stage;
  box.stage.count += 1;
  const path = `/root/file-${box.stage.count}`;
  const content = Buffer.from(random.bytes(1 + random.below(CONTENT_BYTES_MAX))).toString("hex");
  const place = `/sandboxes/${box.id}/files?path=${path}`;
  const since = faults.now;
  const answer = await box.requests.ask("write", place, { method: "PUT", body: content });
  if (answer === null) box.requireOutage("write", since);
  else if (answer.status < 300) {
    box.files = new Map([...box.files, [path, content]]);
    counted(box.stage, "write");
  } else box.requireBusy("write", answer);
}

async function read(box: Box): Promise<void> {
  const files = [...box.files];
  const [path, content] = files[box.stage.random.below(Math.max(1, files.length))] ?? [];
  if (path === undefined || content === undefined) return;
  const answer = await box.requests.ask("read", `/sandboxes/${box.id}/files?path=${path}`);
  if (answer?.status === 200) {
    if (answer.text !== content) box.problem(`${path} is "${answer.text.slice(0, 100)}"`);
    else counted(box.stage, "read");
  } else if (answer !== null) box.requireBusy("read", answer);
}

async function checkpoint(box: Box): Promise<void> {
  const { facts, faults, problems } = box.stage;
  const { files } = box;
  const since = faults.now;
  const answer = await box.requests.post("checkpoint", `/sandboxes/${box.id}/checkpoint`, {});
  if (answer === null) return box.requireOutage("checkpoint", since);
  if (answer.status !== 202) return box.requireBusy("checkpoint", answer);
  const { uuid } = JSON.parse(answer.text) as { uuid: string };
  facts.submitted(uuid);
  for (;;) {
    const ended = await box.requests.ask("wait", `/operations/${uuid}?wait=5`);
    if (ended?.status !== 200) {
      if (ended !== null && !BUSY.includes(ended.status)) return box.problem(`checkpoint ${uuid}: ${ended.text}`);
      await pause("before the next try", TRY_AGAIN_MS);
      continue;
    }
    const operation = JSON.parse(ended.text) as { status: string; error?: never; result?: { image: string } };
    problems.push(...facts.saw(uuid, operation));
    if (operation.status === "SUCCESS") {
      const image = String(operation.result?.image);
      facts.images.set(image, { files, hasShell: true, deletion: "none" });
      box.saved = files;
      counted(box.stage, "checkpoint");
      await box.untilOver(() => box.log.checkpoints.has(image), `the log has checkpoint ${image}`);
    } else if (["FAILED", "CANCELLED"].includes(operation.status)) {
      if (!box.isDisturbed(since)) box.problem(`checkpoint: ${ended.text}`);
    } else continue;
    return;
  }
}

/** Pauses and resumes. With memory, the talkers continue, unless it is given up; without, only the files. */
async function pauseAndResume(box: Box, memory: boolean): Promise<void> {
  const { random, faults } = box.stage;
  const name = memory ? "pause with memory" : "pause";
  const { talkers } = box.log;
  const statesCount = box.log.counts["state"] ?? 0;
  const since = faults.now;
  box.isMoving = true;
  const request = memory ? { memory } : {};
  const answer = await box.requests.post("pause", `/sandboxes/${box.id}/pause?wait=${WAIT_SECONDS}`, request);
  if (answer === null) box.requireOutage(name, since);
  else if (answer.status !== 200) box.requireBusy(name, answer);
  const sandbox = await box.settled();
  if (sandbox.state !== "paused") return await box.recover(since);
  const isKept = sandbox.memory !== undefined;
  // The next daemon completes a pause without the memory.
  if (isKept !== memory && !(memory && faults.wasOut(since))) {
    box.problem(`${isKept ? "it has" : "it has no"} memory after a ${name}: ${JSON.stringify(sandbox)}`);
  }
  counted(box.stage, isKept ? name : "pause");
  await until(
    "the log has the pause",
    () => (box.log.counts["state"] ?? 0) >= statesCount + 2 && box.log.state === "paused",
  );
  if (talkers.some(({ isLost, exit }) => exit === null && isLost === isKept)) {
    box.problem(`the log says that processes are ${isKept ? "lost" : "kept"} in ${JSON.stringify(sandbox)}`);
  }
  box.saved = box.files;
  await pause("it stays paused", random.below(PAUSED_MS_MAX));
  if (random.below(2) === 0) await read(box);
  const lines = talkers.map(({ talker }) => talker?.lines ?? 0);
  const continues = random.below(4) > 0;
  await box.recover(since, ...(continues ? [] : [false as const]));
  if (!isKept) return;
  const isBack = () => (box.log.counts["state"] ?? 0) >= statesCount + 4 && box.log.state === "running";
  await box.untilOver(isBack, "the log has the resume");
  const left = talkers.filter(({ isLost }) => !isLost);
  if (!continues && left.length > 0) box.problem("its processes continue without the memory");
  if (continues && left.length < talkers.length && !box.isDisturbed(since) && !faults.wasKill(since)) {
    box.problem("its processes do not continue with the memory");
  }
  counted(box.stage, continues ? "resume with memory" : "resume without memory");
  if (!continues) return;
  const talk = () => talkers.every(({ talker, isLost }, index) => isLost || (talker?.lines ?? 0) > (lines[index] ?? 0));
  await box.untilOver(talk, "its talkers continue after the pause");
}

async function fork(box: Box): Promise<void> {
  const { stage, files, saved } = box;
  const count = 1 + stage.random.below(2);
  stage.count += 1;
  const name = `fork-${stage.count}`;
  const talkersCount = box.log.talkers.length;
  const since = stage.faults.now;
  const request = { count, name, memory: true };
  const answer = await box.requests.post("fork", `/sandboxes/${box.id}/fork?wait=30`, request);
  if (answer !== null && answer.status !== 201) return box.requireBusy("fork", answer);
  if (answer === null) box.requireOutage("fork", since);
  const ids: string[] = [];
  for (let number = 1; number <= count; number++) {
    const child = await idOf(stage, `${name}-${number}`);
    if (child !== undefined) ids.push(child);
  }
  if (ids.length !== count && (answer !== null || ids.length > 0)) {
    box.problem(`a fork into ${count} has ${ids.length} children`);
  }
  if (answer !== null) counted(stage, "fork");
  for (const id of ids) {
    const child = new Box(stage, id, { files, saved });
    counted(stage, "child");
    box.children.push(child);
    await born(child, talkersCount, since);
  }
}

/** A child continues what its parent's talkers do. @param since before the fork */
async function born(child: Box, talkersCount: number, since: Moment): Promise<void> {
  await child.settled();
  await child.untilOver(() => (child.log.counts["fork"] ?? 0) === 1, "the log of a child begins with the fork");
  const [...talkers] = child.log.talkers;
  const isLost = () => child.log.state === "failed";
  if (talkers.length < talkersCount && !isLost()) child.problem(`a child has ${talkers.length} talkers`);
  await child.untilOver(
    () => talkers.every(({ talker, places }) => (talker?.lines ?? 0) > countAt(places)),
    "the talkers of a child continue",
  );
  await child.recover(since);
}

function countAt(places: FollowedProcess["places"]): number {
  return places.filter(({ event }) => event === -1).reduce((sum, { place }) => sum + place.count, 0);
}
