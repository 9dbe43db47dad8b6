import { createHash } from "node:crypto";
import type { Appliance } from "../support/appliance/appliance.ts";
import { layer, layoutFiles, type RawRegistry, rawImage } from "../support/images/hostile-images.ts";
import { tar } from "../support/images/tar.ts";
import type { seededRandom } from "../support/random.ts";
import { pause } from "../support/waiting.ts";
import type { Acknowledged } from "./acknowledged.ts";
import { BUSY, json, Requests } from "./requests.ts";

export type Random = ReturnType<typeof seededRandom>;

const UPLOAD_BYTES_MAX = 2_097_152;
/** Above this number, images are deleted as often as new ones are published. */
const IMAGES_COUNT_MAX = 40;

export interface LoadOptions {
  readonly appliance: Appliance;
  readonly facts: Acknowledged;
  readonly random: Random;
  readonly registry: RawRegistry;
  /** an image with a shell, which no client deletes */
  readonly base: string;
  /** answers that no fault explains */
  readonly problems: string[];
}

/** Clients of an appliance that does not always answer. Each records only the answers that arrived. */
export class Load {
  readonly #options: LoadOptions;
  readonly #requests: Requests;
  #isStopping = false;
  #count = 0;

  constructor(options: LoadOptions) {
    this.#options = options;
    this.#requests = new Requests(options.appliance, options.problems);
  }

  /** number of answers, by request */
  get done(): Readonly<Record<string, number>> {
    return this.#requests.done;
  }

  /** Runs this number of clients until `stop` is called. */
  async run(clients: number): Promise<void> {
    await Promise.all(Array.from({ length: clients }, () => this.#client()));
  }

  stop(): void {
    this.#isStopping = true;
  }

  async #client(): Promise<void> {
    const steps = [
      ...Array<() => Promise<boolean>>(6).fill(() => this.#spawn()),
      () => this.#disposable(),
      () => this.#upload(),
      () => this.#tag(),
      () => this.#delete(),
      () => this.#cancel(),
      () => this.#load(),
      () => this.#import(),
    ];
    while (!this.#isStopping) {
      const step = steps[this.#options.random.below(steps.length)] as () => Promise<boolean>;
      const answered = await step();
      // A client whose request was lost or refused tries again a moment later.
      if (!answered) await pause("before the next try", 50);
    }
  }

  /** Changes a file and publishes the image, which must have the parent's files and the change. */
  async #spawn(): Promise<boolean> {
    const { facts } = this.#options;
    const parent = this.#someImage();
    const inherited = facts.images.get(parent)?.files ?? new Map<string, string>();
    const [path, content] = this.#newFile();
    const [old] = [...inherited.keys()].slice(-1);
    const command = `mkdir -p /data && printf %s '${content}' > ${path}${old === undefined ? "" : ` && cat ${old}`}`;
    const ended = await this.#operate("spawn", "/instances", { image: parent, command, shell: true, timeout: 120 });
    if (ended?.["status"] !== "SUCCESS") return ended !== null;
    const result = ended["result"] as { exit_code: number; image?: string; stdout: { content: string } };
    if (
      result.exit_code !== 0 ||
      result.image === undefined ||
      result.stdout.content !== (inherited.get(old ?? "") ?? "")
    ) {
      this.#problem(`a run on ${parent} came to ${JSON.stringify(result)}`);
    } else {
      facts.images.set(result.image, {
        files: new Map([...inherited, [path, content]]),
        hasShell: true,
        deletion: "none",
      });
    }
    return true;
  }

  async #disposable(): Promise<boolean> {
    const stdin = `${this.#options.random.below(1_000_000)}\n`.repeat(1000);
    const request = { image: this.#options.base, command: "cat; sleep 1", shell: true, stdin, disposable: true };
    const ended = await this.#operate("disposable", "/instances", request);
    if (ended?.["status"] !== "SUCCESS") return ended !== null;
    const { stdout } = ended["result"] as { stdout: { content: string } };
    if (stdout.content !== stdin) this.#problem("a run gave back another input than it had got");
    return true;
  }

  async #upload(): Promise<boolean> {
    const { random, facts } = this.#options;
    const bytes = random.bytes(1 + random.below(random.below(4) === 0 ? UPLOAD_BYTES_MAX : 5000));
    const answer = await this.#requests.ask("upload", "/files", { method: "POST", body: new Uint8Array(bytes) });
    if (answer?.status !== 201) return answer !== null;
    const { uuid, sha256 } = JSON.parse(answer.text) as { uuid: string; sha256: string };
    if (sha256 !== createHash("sha256").update(bytes).digest("hex")) this.#problem("an upload has another SHA-256");
    facts.files.set(uuid, sha256);
    return true;
  }

  async #tag(): Promise<boolean> {
    const { facts, random } = this.#options;
    const image = this.#someImage();
    const tag = `tag-${random.below(8)}`;
    const isRemoval = random.below(4) === 0;
    const [before] = [...facts.tags].filter(([, holders]) => holders.has(image)).map(([name]) => name);
    // Both the tag and the image's former tag are at their old or new place, with any outcome.
    this.#widen(tag, isRemoval ? null : image);
    if (before !== undefined) this.#widen(before, null);
    const init = isRemoval ? { method: "DELETE" } : { method: "PATCH", ...json({ tag }) };
    facts.tagsAsked += 1;
    const answer = await this.#requests.ask("tag", `/images/${image}/tag`, init);
    facts.tagsAnswered += 1;
    return answer !== null;
  }

  #widen(tag: string, holder: string | null): void {
    const { tags } = this.#options.facts;
    const holders = tags.get(tag) ?? new Set<string | null>([null]);
    tags.set(tag, holders.add(holder));
  }

  async #delete(): Promise<boolean> {
    const { facts, base } = this.#options;
    const present = [...facts.images].filter(([uuid, { deletion }]) => uuid !== base && deletion === "none");
    const chosen = present.length > IMAGES_COUNT_MAX ? present[this.#options.random.below(present.length)] : undefined;
    if (chosen === undefined) return true;
    const [uuid, image] = chosen;
    image.deletion = "requested";
    const answer = await this.#requests.ask("delete", `/images/${uuid}`, { method: "DELETE" });
    if (answer?.status === 204) image.deletion = "done";
    else if (answer !== null) image.deletion = "none";
    return answer !== null;
  }

  async #cancel(): Promise<boolean> {
    const { base, facts, random } = this.#options;
    const request = { image: base, command: "sleep 300", shell: true, timeout: 300 };
    const submitted = await this.#requests.ask("spawn", "/instances", { method: "POST", ...json(request) });
    if (submitted?.status !== 201) return submitted !== null;
    const { uuid } = JSON.parse(submitted.text) as { uuid: string };
    facts.submitted(uuid);
    await pause("it is cancelled at any time", random.below(1500));
    for (;;) {
      const answer = await this.#requests.ask("cancel", `/operations/${uuid}`, { method: "DELETE" });
      if (answer?.status === 202) facts.cancelled(uuid);
      // It runs for 300 s unless it is cancelled, so the cancellation is repeated until there is an answer.
      if (answer !== null && !BUSY.includes(answer.status)) break;
      await pause("before the next try", 100);
    }
    await this.#ended(uuid);
    return true;
  }

  /** An archive with one file, which is sometimes cut off or damaged. */
  async #load(): Promise<boolean> {
    const { random } = this.#options;
    const [path, content] = this.#newFile();
    const archive = tar(layoutFiles(rawImage([layer({ path: path.slice(1), content })])));
    const damage = random.below(4);
    if (damage === 0) archive[random.below(archive.length)] = random.below(256);
    const sent = damage === 1 ? archive.subarray(0, random.below(archive.length)) : archive;
    const upload = await this.#requests.ask("upload", "/files", { method: "POST", body: new Uint8Array(sent) });
    if (upload?.status !== 201) return upload !== null;
    const { uuid } = JSON.parse(upload.text) as { uuid: string };
    return await this.#imported("load", "/images/load", { file: uuid }, damage > 1 ? [path, content] : "unknown");
  }

  /** Imports from a registry half of whose answers are wrong. */
  async #import(): Promise<boolean> {
    const { random, registry } = this.#options;
    const [path, content] = this.#newFile();
    const good = layer({ path: path.slice(1), content });
    const other = layer({ path: "other", content: "other" });
    const lie = random.below(6);
    const lying = [
      { ...good, blob: other.blob, digest: digest(good.blob) },
      { ...good, blob: good.blob?.subarray(0, random.below(100)) ?? null, digest: digest(good.blob) },
      { ...good, diffId: other.diffId },
    ][lie];
    this.#count += 1;
    const name = `image-${this.#count}`;
    const reference = registry.add(name, rawImage([lying ?? good]));
    if (lie === 3) registry.setBlob(digest(good.blob), () => new Response("busy", { status: 503 }));
    const file = lie > 3 ? ([path, content] as const) : lie === 3 ? "unknown" : "none";
    return await this.#imported("import", "/images/import", { registry: reference }, file);
  }

  /** @param file of the image; `unknown` for any content, `none` for a source that must not become an image */
  async #imported(
    what: string,
    path: string,
    request: object,
    file: readonly [string, string] | "unknown" | "none",
  ): Promise<boolean> {
    const ended = await this.#operate(what, path, { ...request, timeout: 120 });
    if (ended?.["status"] !== "SUCCESS") return ended !== null;
    const { image } = ended["result"] as { image: string };
    if (file === "none") this.#problem(`an image came of what a registry lied about: ${JSON.stringify(ended)}`);
    const files = new Map(typeof file === "string" ? [] : [file]);
    this.#options.facts.images.set(image, { files, hasShell: false, deletion: "none" });
    return true;
  }

  /** Submits an operation and returns its end; null when it is unknown whether it was accepted. */
  async #operate(what: string, path: string, request: object): Promise<Record<string, unknown> | null> {
    const answer = await this.#requests.ask(what, path, { method: "POST", ...json(request) });
    if (answer === null) return null;
    if (answer.status !== 201 && answer.status !== 202) {
      // Another client may have deleted the image.
      if (!BUSY.includes(answer.status) && answer.status !== 404)
        this.#problem(`${what}: ${answer.status} ${answer.text}`);
      return null;
    }
    const { uuid } = JSON.parse(answer.text) as { uuid: string };
    this.#options.facts.submitted(uuid);
    return await this.#ended(uuid);
  }

  /** The end of an operation, across restarts; null when the load stops before it. */
  async #ended(id: string): Promise<Record<string, unknown> | null> {
    while (!this.#isStopping) {
      const answer = await this.#requests.ask("wait", `/operations/${id}?wait=5`, {});
      if (answer === null) {
        await pause("before the next try", 100);
        continue;
      }
      if (answer.status === 404) this.#problem(`operation ${id} is not there any more`);
      if (answer.status !== 200) return null;
      const operation = JSON.parse(answer.text) as Record<string, unknown> & { status: string };
      this.#options.problems.push(...this.#options.facts.saw(id, operation));
      if (!["PENDING", "EXECUTING"].includes(operation.status)) return operation;
    }
    return null;
  }

  #someImage(): string {
    const { facts, base, random } = this.#options;
    const present = [...facts.images].filter(([, { deletion }]) => deletion === "none").map(([uuid]) => uuid);
    const withShell = present.filter((uuid) => facts.images.get(uuid)?.hasShell === true);
    return withShell[random.below(withShell.length)] ?? base;
  }

  #newFile(): [path: string, content: string] {
    this.#count += 1;
    const content = Buffer.from(this.#options.random.bytes(20)).toString("hex");
    return [`/data/f${this.#count}`, content];
  }

  #problem(text: string): void {
    this.#options.problems.push(text);
  }
}

function digest(blob: Uint8Array | null): string {
  return `sha256:${createHash("sha256")
    .update(blob ?? "")
    .digest("hex")}`;
}
