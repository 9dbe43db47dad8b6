import type { WireSandbox } from "../../support/sandboxes/client.ts";
import { TALKER } from "../../support/talker/talker.ts";
import { pause, until } from "../../support/waiting.ts";
import { BUSY, Requests } from "../requests.ts";
import { echo, fetchOutside } from "./connections.ts";
import { type FollowedProcess, LogFollower } from "./follower.ts";
import { counted, idOf, type Stage } from "./stage.ts";

const SETTLE_MS_MAX = 240_000;
const TRY_AGAIN_MS = 100;
const PROCESS_MS_MAX = 120_000;
const WAIT_SECONDS = 30;
const TRIES_COUNT_MAX = 50;
/** Requests that are refused while the guest is busy with another one. */
const COPIES = ["fork", "pause with memory"];
/** States that pass by themselves. */
const PASSING = ["starting", "pausing", "resuming"];

const MORE = { resources: { memory_bytes: 134_217_728 } };

/** How a sandbox was before a request whose answer was lost. */
interface Before {
  readonly outages: number;
  /** the state in which that request finds the sandbox */
  readonly state: string;
}

/**
 * A sandbox, its log and its one client, which remembers what was acknowledged. When an answer is lost, both outcomes are right,
 * but nothing between them.
 */
export class Box {
  readonly stage: Stage;
  readonly id: string;
  readonly log: LogFollower;
  readonly requests: Requests;
  /** files that were acknowledged, by path; never changed */
  files: ReadonlyMap<string, string>;
  /** those of the head */
  #saved: ReadonlyMap<string, string>;
  /** processes that were acknowledged: what they print, by number */
  readonly tokens = new Map<number, string>();
  #instance: string | null = null;
  /** a request that moves it between states is under way */
  isMoving = false;

  /** its machine is a copy of another one, which ends with the daemon */
  #isCopy = false;
  /** its forks, for which the caller has to care */
  readonly children: Box[] = [];

  private constructor(
    stage: Stage,
    id: string,
    { files, saved }: { files: ReadonlyMap<string, string>; saved: ReadonlyMap<string, string> },
  ) {
    this.stage = stage;
    this.id = id;
    this.files = files;
    this.#saved = saved;
    this.requests = new Requests(stage.appliance, stage.problems);
    const find = (other: string) => stage.boxes.get(other)?.log ?? null;
    this.log = new LogFollower(stage.appliance, id, find, stage.problems);
    stage.boxes.set(id, this);
    this.log.start();
  }

  /** Opens a sandbox with a talker; null when it was not opened. */
  static async open(stage: Stage): Promise<Box | null> {
    stage.count += 1;
    const name = `box-${stage.count}`;
    const requests = new Requests(stage.appliance, stage.problems);
    const request = {
      image: stage.image,
      name,
      timeout: 86_400,
      ...MORE,
      network: { allow: [{ host: stage.outside.host, ports: "*" }] },
    };
    const { outages } = stage;
    const answer = await requests.post("open", "/sandboxes?wait=30", request);
    const id = answer === null ? await idOf(stage, name) : (JSON.parse(answer.text) as { uuid?: string }).uuid;
    if (id === undefined || (answer !== null && answer.status !== 201)) {
      if (answer !== null && !BUSY.includes(answer.status))
        stage.problems.push(`open: ${answer.status} ${answer.text}`);
      if (answer === null && outages === stage.outages) stage.problems.push(`${name} had no answer without an outage`);
      return null;
    }
    const box = new Box(stage, id, { files: new Map(), saved: new Map() });
    counted(stage, "open");
    await box.recover();
    return box;
  }

  /** The instance that it had when it was seen last. */
  get instance(): string | null {
    return this.#instance;
  }

  /** Does one random thing. */
  async step(canFork: boolean): Promise<void> {
    const { random } = this.stage;
    const steps: (() => Promise<void>)[] = [
      ...Array<() => Promise<void>>(4).fill(() => this.#exec()),
      ...Array<() => Promise<void>>(3).fill(() => this.#write()),
      () => this.#read(),
      () => echo(this),
      () => fetchOutside(this),
      () => this.#checkpoint(),
      () => this.#pause(false),
      ...(canFork ? Array<() => Promise<void>>(2).fill(() => this.#fork()) : []),
    ];
    await (steps[random.below(steps.length)] as () => Promise<void>)();
    await this.recover();
  }

  /** Waits until the sandbox rests, resumes it if it does not run, and sees that it has a talker. */
  async recover(before: Before | null = null): Promise<void> {
    this.isMoving = true;
    try {
      let sandbox = await this.settled();
      if (sandbox.state === "failed") {
        this.#requireReason(sandbox, before);
        await this.#gone();
      }
      for (let tries = 1; sandbox.state === "paused" || sandbox.state === "failed"; tries++) {
        if (tries > TRIES_COUNT_MAX) throw new Error(`sandbox ${this.id} does not resume: ${JSON.stringify(sandbox)}`);
        const answer = await this.requests.post("resume", `/sandboxes/${this.id}/resume?wait=${WAIT_SECONDS}`, {});
        if (answer !== null && answer.status !== 200 && !BUSY.includes(answer.status) && answer.status !== 409) {
          this.problem(`resume: ${answer.status} ${answer.text}`);
        }
        await pause("before the next try", TRY_AGAIN_MS);
        sandbox = await this.settled();
      }
      this.#instance = sandbox.instance;
    } finally {
      this.isMoving = false;
    }
    if (this.log.talkers.length === 0) await this.#talk();
  }

  /** The sandbox in a state that does not pass by itself. */
  async settled(): Promise<WireSandbox> {
    let last = "no answer";
    for (const endsAt = Date.now() + SETTLE_MS_MAX; Date.now() < endsAt; ) {
      const answer = await this.requests.ask("state", `/sandboxes/${this.id}`);
      if (answer?.status === 404) break;
      if (answer?.status === 200) {
        last = answer.text;
        const sandbox = JSON.parse(answer.text) as WireSandbox;
        if (!PASSING.includes(sandbox.state)) return sandbox;
      }
      await pause("before the next try", TRY_AGAIN_MS);
    }
    throw new Error(`sandbox ${this.id} does not rest: ${last}`);
  }

  problem(text: string): void {
    this.stage.problems.push(`sandbox ${this.id}: ${text}`);
  }

  /** A machine that a fault has not killed does not fail; nor does one that was not moving between states. */
  #requireReason({ error, uuid }: WireSandbox, before: Before | null): void {
    const wasKilled = this.#instance === null || this.stage.killed.has(this.#instance);
    const wasMoving = before !== null && before.outages !== this.stage.outages;
    if (!wasKilled && !wasMoving && !this.#isCopy)
      this.problem(`${uuid} failed without a reason: ${JSON.stringify(error)}`);
    counted(this.stage, "failed");
  }

  /** The machine is gone: the files are those of the head, and the processes are lost. */
  async #gone(): Promise<void> {
    this.#isCopy = false;
    await this.#follows("failed");
    this.log.lose();
    this.files = this.#saved;
  }

  /** Waits until the log says that state last. */
  async #follows(state: string): Promise<void> {
    await until(`the log of ${this.id} says ${state}`, () => this.log.state === state, PROCESS_MS_MAX);
  }

  /** Starts a talker, until one talks. */
  async #talk(): Promise<void> {
    this.stage.count += 1;
    const args = [`talker-${this.stage.count}`, ...this.stage.pace.map(String)];
    const answer = await this.process({ command: TALKER, args });
    if (answer === null) return;
    await this.untilOver(() => (this.log.processes.get(answer)?.talker?.lines ?? 0) > 0, `talker ${answer} talks`);
  }

  /** Starts a process and returns its number; null when it is unknown whether it runs, or it was refused. */
  async process(request: object): Promise<number | null> {
    const { outages } = this.stage;
    const answer = await this.requests.post("process", `/sandboxes/${this.id}/processes`, request);
    if (answer === null) this.#requireOutage("process", outages);
    else if (answer.status === 201) return (JSON.parse(answer.text) as { spid: number }).spid;
    else this.#requireBusy("process", answer);
    return null;
  }

  async #exec(): Promise<void> {
    this.stage.count += 1;
    const token = `token-${this.stage.count}`;
    const spid = await this.process({ command: `echo ${token}`, shell: true });
    if (spid === null) return;
    this.tokens.set(spid, token);
    counted(this.stage, "exec");
    await this.untilOver(() => (this.log.processes.get(spid)?.exit ?? null) !== null, `process ${spid} ends`);
  }

  async #write(): Promise<void> {
    const { random, outages } = this.stage;
    this.stage.count += 1;
    const path = `/root/file-${this.stage.count}`;
    const content = Buffer.from(random.bytes(1 + random.below(400))).toString("hex");
    const place = `/sandboxes/${this.id}/files?path=${path}`;
    const answer = await this.requests.ask("write", place, { method: "PUT", body: content });
    if (answer === null) this.#requireOutage("write", outages);
    else if (answer.status < 300) {
      this.files = new Map([...this.files, [path, content]]);
      counted(this.stage, "write");
    } else this.#requireBusy("write", answer);
  }

  async #read(): Promise<void> {
    const files = [...this.files];
    const [path, content] = files[this.stage.random.below(Math.max(1, files.length))] ?? [];
    if (path === undefined || content === undefined) return;
    const answer = await this.requests.ask("read", `/sandboxes/${this.id}/files?path=${path}`);
    if (answer?.status === 200 && answer.text !== content) this.problem(`${path} is "${answer.text.slice(0, 100)}"`);
    else if (answer !== null && answer.status !== 200) this.#requireBusy("read", answer);
  }

  async #checkpoint(): Promise<void> {
    const { outages, facts } = this.stage;
    const files = this.files;
    const answer = await this.requests.post("checkpoint", `/sandboxes/${this.id}/checkpoint`, {});
    if (answer === null) return this.#requireOutage("checkpoint", outages);
    if (answer.status !== 202) return this.#requireBusy("checkpoint", answer);
    const { uuid } = JSON.parse(answer.text) as { uuid: string };
    facts.submitted(uuid);
    for (;;) {
      const ended = await this.requests.ask("wait", `/operations/${uuid}?wait=5`);
      if (ended?.status !== 200) {
        if (ended !== null && !BUSY.includes(ended.status)) return this.problem(`checkpoint ${uuid}: ${ended.text}`);
        await pause("before the next try", TRY_AGAIN_MS);
        continue;
      }
      const operation = JSON.parse(ended.text) as { status: string; error?: never; result?: { image: string } };
      this.stage.problems.push(...facts.saw(uuid, operation));
      if (operation.status === "SUCCESS") {
        const image = String(operation.result?.image);
        facts.images.set(image, { files, hasShell: true, deletion: "none" });
        this.#saved = files;
        counted(this.stage, "checkpoint");
        await this.untilOver(() => this.log.checkpoints.has(image), `the log has checkpoint ${image}`);
      } else if (["FAILED", "CANCELLED"].includes(operation.status)) {
        if (!this.isDisturbed(outages)) this.problem(`checkpoint: ${ended.text}`);
      } else continue;
      return;
    }
  }

  /** Pauses and resumes. With memory, the talkers continue; without, only the files. */
  async #pause(memory: boolean): Promise<void> {
    const { random, outages } = this.stage;
    const before = { outages, state: "running" };
    const talkers = this.log.talkers;
    const pauses = this.log.counts["state"] ?? 0;
    this.isMoving = true;
    const answer = await this.requests.post(
      "pause",
      `/sandboxes/${this.id}/pause?wait=${WAIT_SECONDS}`,
      memory ? { memory } : {},
    );
    if (answer === null) this.#requireOutage("pause", outages);
    else if (answer.status !== 200) this.#requireBusy(memory ? "pause with memory" : "pause", answer);
    const sandbox = await this.settled();
    if (sandbox.state === "paused" && memory !== (sandbox.memory !== undefined)) {
      this.problem(`${memory ? "it has no" : "it has"} memory after a pause: ${JSON.stringify(sandbox)}`);
    }
    if (sandbox.state === "paused") {
      counted(this.stage, memory ? "pause with memory" : "pause");
      await until(
        "the log has the pause",
        () => (this.log.counts["state"] ?? 0) >= pauses + 2 && this.log.state === "paused",
      );
      this.#saved = this.files;
      if (!memory) this.log.lose();
      await pause("it stays paused", random.below(1500));
      if (random.below(2) === 0) await this.#read();
    }
    const lines = talkers.map(({ talker }) => talker?.lines ?? 0);
    await this.recover(before);
    if (sandbox.state !== "paused" || !memory) return;
    counted(this.stage, "resume with memory");
    const talk = () => talkers.every(({ talker }, index) => (talker?.lines ?? 0) > (lines[index] ?? 0));
    await this.untilOver(talk, "its talkers continue after the pause");
  }

  async #fork(): Promise<void> {
    const { random, outages } = this.stage;
    const count = 1 + random.below(2);
    this.stage.count += 1;
    const name = `fork-${this.stage.count}`;
    const files = this.files;
    const answer = await this.requests.post("fork", `/sandboxes/${this.id}/fork?wait=30`, {
      count,
      name,
      memory: true,
    });
    if (answer !== null && answer.status !== 201) return this.#requireBusy("fork", answer);
    if (answer === null) this.#requireOutage("fork", outages);
    const children: string[] = [];
    for (let number = 1; number <= count; number++) {
      const child = await idOf(this.stage, `${name}-${number}`);
      if (child !== undefined) children.push(child);
    }
    if (children.length !== count && (answer !== null || children.length > 0)) {
      this.problem(`a fork into ${count} has ${children.length} children`);
    }
    if (answer !== null) counted(this.stage, "fork");
    for (const id of children) {
      const child = new Box(this.stage, id, { files, saved: this.#saved });
      counted(this.stage, "child");
      child.#isCopy = true;
      this.children.push(child);
      await child.#born(answer !== null);
    }
  }

  /** A child continues what its parent's talkers do. */
  async #born(isAcknowledged: boolean): Promise<void> {
    const { outages } = this.stage;
    const { state } = await this.settled();
    if (state === "failed" && isAcknowledged && !this.isDisturbed(outages)) this.problem("a child of a fork failed");
    await this.untilOver(() => (this.log.counts["fork"] ?? 0) === 1, "the log of a child begins with the fork");
    const [...talkers] = this.log.talkers;
    await this.untilOver(
      () => talkers.length > 0 && talkers.every(({ talker, places }) => (talker?.lines ?? 0) > countAt(places)),
      "the talkers of a child continue",
    );
    await this.recover({ outages: -1, state });
  }

  /** Waits for a fact of the log, unless the machine of the sandbox is lost meanwhile. */
  async untilOver(holds: () => boolean, what: string): Promise<void> {
    const isOver = () =>
      this.log.state === "failed" || (this.#instance !== null && this.stage.killed.has(this.#instance));
    await until(what, () => holds() || isOver(), PROCESS_MS_MAX).catch((error: Error) => this.problem(error.message));
  }

  isDisturbed(outages: number): boolean {
    const { killed } = this.stage;
    return outages !== this.stage.outages || (this.#instance !== null && killed.has(this.#instance));
  }

  #requireOutage(what: string, outages: number): void {
    if (outages === this.stage.outages) this.problem(`${what} had no answer without an outage`);
  }

  /** Other refusals than those of a host that is busy, or of a sandbox whose machine was killed, are problems. */
  #requireBusy(what: string, { status, text }: { readonly status: number; readonly text: string }): void {
    counted(this.stage, `${what} refused: ${status}`);
    const isKilled = this.#instance !== null && this.stage.killed.has(this.#instance);
    // Its machine has just ended, and its state does not say so yet.
    const isEnding = text.includes('"state":"running"');
    if (!BUSY.includes(status) && !(status === 409 && (isKilled || isEnding || COPIES.includes(what)))) {
      this.problem(`${what}: ${status} ${text}`);
    }
  }
}

function countAt(places: FollowedProcess["places"]): number {
  return places.filter(({ event }) => event === -1).reduce((sum, { place }) => sum + place.count, 0);
}
