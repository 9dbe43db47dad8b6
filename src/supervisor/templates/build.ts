import type { Database } from "../../db/database.ts";
import { getImage, type ImageRow, imageDefaults } from "../../db/images/images.ts";
import { buildFile, deriveImage, keepStep, keptStep } from "../../db/templates/cache.ts";
import type { TemplateConfig } from "../../db/templates/schema.ts";
import { ApiError } from "../../domain/errors.ts";
import type { AccountId, ImageId } from "../../domain/ids.ts";
import { checkVariables, type Variables } from "../../domain/image-defaults.ts";
import type { InstanceSubmission, SubmittedFile } from "../../domain/spawn.ts";
import type { BuildLog } from "../../domain/templates/build-log.ts";
import {
  COPY_ARCHIVE,
  COPY_SCRIPT,
  DIRECTORY_SCRIPT,
  EXPLAINED,
  READY_SCRIPT,
  SHELL_SCRIPT,
} from "../../domain/templates/scripts.ts";
import {
  absolutePath,
  BASE_STEP,
  type BuildState,
  type BuildStep,
  type CopyStep,
  FINALIZE_STEP,
  plainSource,
  stepKey,
  stepText,
} from "../../domain/templates/steps.ts";
import { isUserName, USER_SCRIPT } from "../../domain/templates/user-script.ts";
import { blobPath } from "../../storage/blobs.ts";
import type { LayerStore } from "../../storage/layers/layer-store.ts";
import type { DataLayout } from "../../storage/layout.ts";
import type { ImportSubmission } from "../imports/import-image.ts";
import { importKind } from "../kinds/image-import.ts";
import { type BuildRun, BuildRuns, type BuildRunsOptions, type EndedRun } from "./build-runs.ts";
import { ImageFacts } from "./image-facts.ts";

/** Time limit of the wait for a start command, in `seconds`. */
const READY_SECONDS_MAX = 600;
/** Command that is run until it succeeds when a build with a start command names none. */
const READY_DEFAULT = "sleep 2";
/** Without it, no step can run. */
const SHELL = "/bin/sh";
const COPY_FILE_MODE = 0o600;

/** Where a build begins: an image of the account, or one of a registry. */
export type BuildOrigin =
  | { readonly imageId: ImageId /** null: the image is not of a build */; readonly config: TemplateConfig | null }
  | Pick<ImportSubmission, "source" | "credentials" | "timeoutSeconds">;

/** A validated build. */
export interface BuildSubmission extends Pick<InstanceSubmission, "network" | "resources"> {
  readonly id: string;
  readonly accountId: AccountId;
  /** as the author of the build names it */
  readonly originName: string;
  /** Looks the beginning up. @throws ApiError */
  readonly origin: () => BuildOrigin;
  readonly steps: readonly BuildStep[];
  /** true: nothing that is kept is used again */
  readonly force: boolean;
  readonly startCmd: string | null;
  readonly readyCmd: string | null;
  /** the user of the first steps, who is added to an image that lacks him */
  readonly defaultUser: string;
  /** time limit of a step */
  readonly stepSeconds: number;
}

export interface BuildTools extends BuildRunsOptions {
  readonly db: Database;
  readonly layout: DataLayout;
  readonly layers: LayerStore;
  readonly clock: () => number;
  /** Deletes an image that nothing names. */
  readonly drop: (accountId: AccountId, id: ImageId) => Promise<void>;
}

/** A build failed at a step, for a reason that its author may see. */
export class BuildError extends Error {
  override readonly name = "BuildError";
  readonly step: string;

  constructor(step: string, message: string, options?: ErrorOptions) {
    super(message, options);
    this.step = step;
  }
}

/** An image on the way, and what its steps pass on. */
interface Stage {
  readonly image: ImageRow;
  readonly state: BuildState;
}

/** One build: its steps, one after the other. */
export class Build {
  readonly #tools: BuildTools;
  readonly #submission: BuildSubmission;
  readonly #log: BuildLog;
  readonly #runs: BuildRuns;
  readonly #facts: ImageFacts;
  #isForced: boolean;

  constructor(tools: BuildTools, submission: BuildSubmission, log: BuildLog, signal: AbortSignal) {
    this.#tools = tools;
    this.#submission = submission;
    this.#log = log;
    this.#isForced = submission.force;
    const { accountId, network, resources } = submission;
    this.#runs = new BuildRuns(tools, { accountId, network, resources, log, signal });
    this.#facts = new ImageFacts(tools.layers, signal);
  }

  /** Returns the image with its settings. @throws BuildError; the reason of the signal */
  async run(): Promise<{ readonly imageId: ImageId; readonly config: TemplateConfig }> {
    const { steps, resources } = this.#submission;
    const { stage: base, config } = await this.#at(BASE_STEP, () => this.#base());
    let stage = base;
    for (const [index, step] of steps.entries()) {
      const name = String(index + 1);
      this.#isForced ||= step.force;
      this.#log.say(name, `[builder ${name}/${steps.length}] ${stepText(step)}`);
      stage = await this.#at(name, () => this.#step(name, step, stage));
    }
    const startCmd = this.#submission.startCmd ?? config?.startCmd ?? null;
    const readyCmd = this.#submission.readyCmd ?? config?.readyCmd ?? null;
    return await this.#at(FINALIZE_STEP, async () => {
      await this.#tryStart(stage, startCmd, readyCmd);
      const { user, cwd, env } = stage.state;
      const ownEnv = this.#ownEnv(env, base.state.env, config?.env ?? {});
      const { vcpus, memoryBytes } = resources;
      return {
        imageId: this.#finalImage(stage).id,
        config: { user, cwd, env: ownEnv, startCmd, readyCmd, vcpus, memoryBytes },
      };
    });
  }

  async #at<T>(step: string, work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      if (error instanceof ApiError) throw new BuildError(step, error.message, { cause: error });
      throw error;
    }
  }

  /** The image with which the build begins, with its user. */
  async #base(): Promise<{ stage: Stage; config: TemplateConfig | null }> {
    const { originName, defaultUser } = this.#submission;
    this.#log.say(BASE_STEP, `[base] FROM ${originName}`);
    const origin = this.#submission.origin();
    const image = await this.#originImage(origin);
    const env = imageDefaults(this.#tools.db, image.id).variables;
    const config = "imageId" in origin ? origin.config : null;
    if (config !== null) {
      const { user, cwd } = config;
      return { stage: { image, state: { user: user ?? defaultUser, cwd, env: { ...env, ...config.env } } }, config };
    }
    if (!(await this.#facts.isFile(image, SHELL))) {
      this.#log.say(BASE_STEP, `the image has no ${SHELL}: steps run as root, and can only set variables`, "warn");
      return { stage: { image, state: { user: "root", cwd: "/", env } }, config };
    }
    const state = { user: defaultUser, cwd: null, env };
    const withUser = await this.#withUser(BASE_STEP, { image, state }, defaultUser);
    return { stage: { ...withUser, state }, config };
  }

  async #originImage(origin: BuildOrigin): Promise<ImageRow> {
    const { db, operations, clock } = this.#tools;
    const { accountId } = this.#submission;
    if ("imageId" in origin) return this.#image(origin.imageId);
    const submission = { ...origin, tag: null, reuse: true, keepTags: true };
    const { id } = await operations.submit(accountId, importKind, submission);
    const image = this.#image((await this.#runs.ended(id, null))["image"] as ImageId);
    const key = `import-${image.id}`;
    // It is kept as long as the images of steps, unless an import of the account itself has made it.
    if (keptStep(db, accountId, key, clock()) === null && image.operationId === id) {
      keepStep(db, { accountId, key, imageId: image.id, now: clock() });
    }
    return image;
  }

  #image(id: ImageId): ImageRow {
    const image = getImage(this.#tools.db, this.#submission.accountId, id);
    if (image === null) throw new ApiError("not_found", "the image was deleted");
    return image;
  }

  async #step(name: string, step: BuildStep, stage: Stage): Promise<Stage> {
    const { image, state } = stage;
    switch (step.kind) {
      case "env": {
        const env = { ...state.env, ...step.variables };
        checkVariables(env);
        return { image, state: { ...state, env } };
      }
      case "run": {
        const user = step.user ?? state.user;
        const run = () => this.#run(name, { ...stage, state: { ...state, user } }, step.command);
        return { state, image: await this.#kept(name, step, stage, run) };
      }
      case "copy":
        return { state, image: await this.#kept(name, step, stage, () => this.#copy(name, step, stage)) };
      case "workdir": {
        const cwd = absolutePath(step.path, state.cwd);
        const make = () =>
          this.#rootRun(name, stage, "failed to create workdir", DIRECTORY_SCRIPT, [cwd, ownerOf(state.user)]);
        const isThere = await this.#facts.isDirectory(image, cwd);
        return { state: { ...state, cwd }, image: isThere ? image : await this.#kept(name, step, stage, make) };
      }
      case "user":
        return await this.#withUser(name, stage, step.name);
    }
  }

  /** The image after a step: one that is kept, or a new one. */
  async #kept(
    name: string,
    step: BuildStep,
    { image, state }: Stage,
    make: () => Promise<ImageRow>,
  ): Promise<ImageRow> {
    const { db, clock } = this.#tools;
    const { accountId } = this.#submission;
    const key = stepKey(step, { layerId: image.layerId, state });
    const kept = this.#isForced ? null : keptStep(db, accountId, key, clock());
    if (kept !== null) {
      this.#log.say(name, `CACHED ${stepText(step)}`);
      return kept;
    }
    const result = await make();
    // Kept images are deleted one day. A step that changes nothing has the image before it, which may be a user's.
    const own = result.id === image.id ? deriveImage(db, image, imageDefaults(db, image.id), clock()) : result;
    keepStep(db, { accountId, key, imageId: own.id, now: clock() });
    return own;
  }

  async #run(name: string, { image, state }: Stage, command: string): Promise<ImageRow> {
    const what = `failed to run command '${command}'`;
    const { stepSeconds: timeoutSeconds } = this.#submission;
    const run = { step: name, image, state, script: SHELL_SCRIPT, args: [command], asRoot: false, timeoutSeconds };
    return await this.#succeeded(what, run);
  }

  async #copy(name: string, step: CopyStep, { image, state }: Stage): Promise<ImageRow> {
    const file = this.#archive(step);
    const { path, isPattern } = plainSource(step.source);
    const isGzip = await startsAsGzip(blobPath(this.#tools.layout, file.sha256));
    const owner = ownerOf(step.owner ?? state.user);
    const args = [isGzip ? "z" : "", path, step.target, owner, step.mode ?? "", state.cwd ?? "", state.user];
    const files = [file];
    const what = `failed to copy '${step.source}'`;
    return await this.#rootRun(name, { image, state }, what, COPY_SCRIPT, [...args, isPattern ? "pattern" : ""], files);
  }

  /** @throws BuildError without an archive */
  #archive({ filesHash, source }: CopyStep): SubmittedFile {
    const row = buildFile(this.#tools.db, this.#submission.accountId, filesHash);
    if (row === null) throw new ApiError("not_found", `the files of COPY ${source} were not uploaded`);
    const { id: fileId, sha256, sizeBytes } = row;
    return { path: COPY_ARCHIVE, fileId, sha256, sizeBytes, mode: COPY_FILE_MODE, uid: 0, gid: 0 };
  }

  /** The stage with that user, who is added if the guest has no such user. */
  async #withUser(name: string, { image, state }: Stage, user: string): Promise<Stage> {
    const next = { ...state, user };
    if (/^[0-9]+(:[0-9]+)?$/.test(user) || (await this.#facts.hasUser(image, user.split(":")[0] ?? ""))) {
      return { image, state: next };
    }
    if (!isUserName(user)) throw invalidUser(user);
    const step: BuildStep = { kind: "user", name: user, force: false };
    const add = () => this.#rootRun(name, { image, state }, "failed to create user", USER_SCRIPT, [user]);
    return { image: await this.#kept(name, step, { image, state: ROOT_STATE }, add), state: next };
  }

  async #rootRun(
    name: string,
    { image, state }: Stage,
    what: string,
    script: string,
    args: readonly string[],
    files: readonly SubmittedFile[] = [],
  ): Promise<ImageRow> {
    const { stepSeconds: timeoutSeconds } = this.#submission;
    const run = { step: name, image, state, script, args, files, asRoot: true, timeoutSeconds };
    return await this.#succeeded(what, run);
  }

  /** The image of a run that succeeded. @throws BuildError for one that did not, whose image is deleted */
  async #succeeded(what: string, run: BuildRun): Promise<ImageRow> {
    const { step, image, state, asRoot } = run;
    let ended: EndedRun;
    try {
      ended = await this.#runs.run(run);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const isUser = error.code === "not_found" && error.details["field"] === "user";
      throw new BuildError(step, `${what}: command failed: ${(isUser ? invalidUser(state.user) : error).message}`, {
        cause: error,
      });
    }
    if (ended.exitCode === 0) return ended.image;
    if (ended.image.id !== image.id) await this.#tools.drop(this.#submission.accountId, ended.image.id);
    const why = ended.timedOut ? "the time limit was hit" : this.#failure(step, ended, asRoot);
    throw new BuildError(step, `${what}: command failed: ${why}`);
  }

  /** Why a run failed. @param isOwn the script is the build's own, which may explain it */
  #failure(step: string, { exitCode }: EndedRun, isOwn: boolean): string {
    const [last] = this.#log.tail(step, 1);
    return isOwn && exitCode === EXPLAINED && last !== undefined ? last.message : `exit status ${exitCode}`;
  }

  /** Starts the command once, and waits until it is ready. @throws BuildError */
  async #tryStart({ image, state }: Stage, startCmd: string | null, readyCmd: string | null): Promise<void> {
    if (startCmd === null && readyCmd === null) return;
    this.#log.say(FINALIZE_STEP, `[finalize] Starting: ${startCmd ?? ""}; ready: ${readyCmd ?? READY_DEFAULT}`);
    const args = [startCmd ?? "", readyCmd ?? READY_DEFAULT];
    const setting = { image, state, asRoot: false, isTrial: true, timeoutSeconds: READY_SECONDS_MAX };
    const ended = await this.#runs.run({
      step: FINALIZE_STEP,
      script: READY_SCRIPT,
      args,
      ...setting,
    });
    if (ended.timedOut) throw new BuildError(FINALIZE_STEP, `the template is not ready after ${READY_SECONDS_MAX} s`);
    if (ended.exitCode === 0) return;
    const why = this.#failure(FINALIZE_STEP, ended, true);
    throw new BuildError(FINALIZE_STEP, `failed to run start command '${startCmd}': ${why}`);
  }

  /** The variables that the template sets: those that its first image had, too, come with the image. */
  #ownEnv(env: Variables, base: Variables, inherited: Variables): Variables {
    return Object.fromEntries(Object.entries(env).filter(([name, value]) => name in inherited || base[name] !== value));
  }

  /** An image of the build's own, with the variables and the directory of its state as defaults. */
  #finalImage({ image, state }: Stage): ImageRow {
    const { db, clock } = this.#tools;
    const cwd = state.cwd ?? imageDefaults(db, image.id).cwd;
    return deriveImage(db, image, { variables: state.env, cwd }, clock());
  }
}

/** The state of a step that depends on the files only. */
const ROOT_STATE: BuildState = { user: "root", cwd: "/", env: {} };

function invalidUser(name: string): ApiError {
  return new ApiError("validation_error", `unauthenticated: invalid username: '${name}'`);
}

/** `USER` with the group of the user, as chown takes it; a number has no group. */
function ownerOf(user: string): string {
  return user.includes(":") || /^[0-9]+$/.test(user) ? user : `${user}:`;
}

async function startsAsGzip(path: string): Promise<boolean> {
  const [first, second] = new Uint8Array(await Bun.file(path).slice(0, 2).arrayBuffer());
  return first === 0x1f && second === 0x8b;
}
