import type { WireSandbox } from "../../support/sandboxes/client.ts";
import { TALKER } from "../../support/talker/talker.ts";
import { pause, until } from "../../support/waiting.ts";
import { BUSY, Requests } from "../requests.ts";
import type { Moment } from "./disturbances.ts";
import { LogFollower } from "./follower.ts";
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

type Files = ReadonlyMap<string, string>;

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
  files: Files;
  /** those of the head */
  saved: Files;
  /** processes that were acknowledged: what they print, by number */
  readonly tokens = new Map<number, string>();
  #instance: string | null = null;
  /** a request that moves it between states is under way */
  isMoving = false;
  /** it has failed, so that its files are to be compared */
  hasFailed = false;
  /** its forks, for which the caller has to care */
  readonly children: Box[] = [];

  constructor(stage: Stage, id: string, { files, saved }: { readonly files: Files; readonly saved: Files }) {
    this.stage = stage;
    this.id = id;
    this.files = files;
    this.saved = saved;
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
    const since = stage.faults.now;
    const answer = await requests.post("open", "/sandboxes?wait=30", request);
    const id = answer === null ? await idOf(stage, name) : (JSON.parse(answer.text) as { uuid?: string }).uuid;
    if (id === undefined || (answer !== null && answer.status !== 201)) {
      if (answer !== null && !BUSY.includes(answer.status))
        stage.problems.push(`open: ${answer.status} ${answer.text}`);
      if (answer === null && !stage.faults.wasOut(since)) {
        stage.problems.push(`${name} had no answer without an outage`);
      }
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

  /** True when a fault has killed its machine, or it has none that is known. */
  get isKilled(): boolean {
    return this.#instance === null || this.stage.faults.isKilled(this.#instance);
  }

  /**
   * Waits until the sandbox rests, resumes it if it does not run, and sees that it has a talker.
   * @param since faults since then explain why it fails; absent: only the end of its machine does
   * @param memory false: memory that is kept is given up
   */
  async recover(since?: Moment, memory?: false): Promise<void> {
    const { faults } = this.stage;
    this.isMoving = true;
    try {
      let moved = since;
      let sandbox = await this.settled();
      for (let tries = 1; sandbox.state === "paused" || sandbox.state === "failed"; tries++) {
        if (tries > TRIES_COUNT_MAX) throw new Error(`sandbox ${this.id} does not resume: ${JSON.stringify(sandbox)}`);
        if (sandbox.state === "failed") await this.#fail(sandbox, moved);
        moved ??= faults.now;
        await this.#resume(sandbox, memory);
        sandbox = await this.settled();
      }
      this.#instance = sandbox.instance;
    } finally {
      this.isMoving = false;
    }
    if (this.log.talkers.length === 0) await this.#talk();
  }

  async #resume(sandbox: WireSandbox, memory?: false): Promise<void> {
    const keeps = sandbox.state === "paused" && sandbox.memory !== undefined;
    const request = keeps && memory === false ? { memory } : {};
    const answer = await this.requests.post("resume", `/sandboxes/${this.id}/resume?wait=${WAIT_SECONDS}`, request);
    if (answer !== null && answer.status !== 200 && !BUSY.includes(answer.status)) {
      const { details } = JSON.parse(answer.text) as { details?: { state?: string } };
      // An answer to the request before it was lost.
      if (answer.status !== 409 || details?.state === undefined)
        this.problem(`resume: ${answer.status} ${answer.text}`);
    }
    await pause("before the next try", TRY_AGAIN_MS);
  }

  /** The machine is gone: the files are those of the head, and the processes are lost. */
  async #fail({ error, uuid }: WireSandbox, moved: Moment | undefined): Promise<void> {
    const { faults } = this.stage;
    const wasMoving = moved !== undefined && (faults.wasOut(moved) || faults.wasKill(moved));
    if (!this.isKilled && !wasMoving) {
      this.problem(`${uuid} failed without a reason: ${JSON.stringify(error)}`);
    }
    counted(this.stage, `failed: ${error?.message}`);
    this.hasFailed = true;
    await until(`the log of ${this.id} says failed`, () => this.log.state === "failed", PROCESS_MS_MAX);
    this.files = this.saved;
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
    const since = this.stage.faults.now;
    const answer = await this.requests.post("process", `/sandboxes/${this.id}/processes`, request);
    if (answer === null) this.requireOutage("process", since);
    else if (answer.status === 201) return (JSON.parse(answer.text) as { spid: number }).spid;
    else this.requireBusy("process", answer);
    return null;
  }

  /** Waits for a fact of the log, unless the machine of the sandbox is lost meanwhile, or there is a problem anyhow. */
  async untilOver(holds: () => boolean, what: string): Promise<void> {
    const isOver = () => this.log.state === "failed" || this.stage.problems.length > 0;
    await until(what, () => holds() || isOver(), PROCESS_MS_MAX).catch((error: Error) => this.problem(error.message));
  }

  /** True when the daemon was not there all the time since the moment, or the machine may have been killed. */
  isDisturbed(since: Moment): boolean {
    return this.stage.faults.wasOut(since) || (this.#instance !== null && this.isKilled);
  }

  /** A request without an answer is a problem, unless the daemon ended. */
  requireOutage(what: string, since: Moment): void {
    if (!this.stage.faults.wasOut(since)) this.problem(`${what} had no answer without an outage`);
  }

  /** Other refusals than those of a host that is busy, or of a sandbox whose machine was killed, are problems. */
  requireBusy(what: string, { status, text }: { readonly status: number; readonly text: string }): void {
    counted(this.stage, `${what} refused: ${status}`);
    if (!BUSY.includes(status) && !(status === 409 && (this.isKilled || COPIES.includes(what)))) {
      this.problem(`${what}: ${status} ${text}`);
    }
  }
}
