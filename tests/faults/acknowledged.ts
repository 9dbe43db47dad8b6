import type { Appliance } from "../support/appliance/appliance.ts";

/** The content that an image must have, by path, until its deletion is requested. */
export interface ImageFacts {
  readonly files: ReadonlyMap<string, string>;
  /** it has a shell, so that runs can start from it */
  readonly hasShell: boolean;
  /** `requested`: a deletion was sent and its answer was lost, so that the image may exist or not */
  deletion: "none" | "requested" | "done";
}

interface OperationView {
  readonly status: string;
  readonly error?: { readonly error: string; readonly message: string };
}

const TERMINAL = ["SUCCESS", "FAILED", "CANCELLED"];
/** Errors that a fault may cause. All others are defects, `internal_error` first. */
const REASONS = ["unavailable", "insufficient_storage", "validation_error", "conflict", "not_found"];
const PAGE_COUNT = 1000;

/**
 * Everything that an appliance has acknowledged, and the check that it still holds. A fact is added when its answer has
 * arrived; when an answer was lost, both outcomes are right until one of them was seen.
 */
export class Acknowledged {
  readonly #appliance: Appliance;
  /** uuid of uploads, and the SHA-256 of their contents */
  readonly files = new Map<string, string>();
  readonly images = new Map<string, ImageFacts>();
  /** by tag, the images that it may show; null: none */
  readonly tags = new Map<string, Set<string | null>>();
  /** changes of tags so far, and those without an answer yet: while the two differ, a tag may move */
  tagsAsked = 0;
  tagsAnswered = 0;
  /** the first terminal answer of each operation */
  readonly #ended = new Map<string, string>();
  #successes = 0;
  readonly #open = new Set<string>();
  readonly #cancelled = new Set<string>();

  constructor(appliance: Appliance) {
    this.#appliance = appliance;
  }

  /** operations that have succeeded */
  get successes(): number {
    return this.#successes;
  }

  /** the number of facts, as text */
  get summary(): string {
    return `${this.#ended.size} ended operations (${this.#successes} SUCCESS), ${this.images.size} images, ${this.files.size} files, ${this.tags.size} tags`;
  }

  submitted(id: string): void {
    this.#open.add(id);
  }

  /** DELETE was accepted. */
  cancelled(id: string): void {
    this.#cancelled.add(id);
  }

  /** Records the state of an operation, and returns contradictions. */
  saw(id: string, operation: OperationView): string[] {
    const problems: string[] = [];
    const said = JSON.stringify(operation);
    const before = this.#ended.get(id);
    if (before !== undefined) return before === said ? [] : [`operation ${id} ended as ${before} and is now ${said}`];
    if (!TERMINAL.includes(operation.status)) return [];
    this.#open.delete(id);
    this.#ended.set(id, said);
    if (operation.status === "SUCCESS") this.#successes += 1;
    if (this.#cancelled.has(id) && operation.status !== "CANCELLED") {
      problems.push(`operation ${id}: its cancel was accepted and it ended as ${said}`);
    }
    if (operation.status === "FAILED" && !REASONS.includes(operation.error?.error ?? "")) {
      problems.push(`operation ${id} failed for a reason that none of the faults is: ${said}`);
    }
    return problems;
  }

  /** Waits until all operations have ended, and returns contradictions. */
  async settle(limitMs: number): Promise<string[]> {
    const deadline = Date.now() + limitMs;
    const problems: string[] = [];
    for (const id of [...this.#open]) {
      while (this.#open.has(id)) {
        if (Date.now() > deadline) return [...problems, `operation ${id} did not end`];
        const response = await this.#appliance.fetch(`/operations/${id}?wait=20`);
        if (response.status !== 200) {
          problems.push(`operation ${id}: ${response.status} ${await response.text()}`);
          this.#open.delete(id);
          break;
        }
        problems.push(...this.saw(id, (await response.json()) as OperationView));
      }
    }
    return problems;
  }

  /** Reads everything that the appliance has acknowledged; returns what is missing or differs. */
  async check(): Promise<string[]> {
    return [
      ...(await this.#checkFiles()),
      ...(await this.#checkImages()),
      ...(await this.#checkTags()),
      ...(await this.#checkOperations()),
    ];
  }

  async #checkFiles(): Promise<string[]> {
    const problems: string[] = [];
    for (const [uuid, sha256] of this.files) {
      const response = await this.#appliance.fetch(`/files?sha256=${sha256}`);
      const body = await response.text();
      if (response.status !== 200 || JSON.parse(body).uuid !== uuid) problems.push(`file ${uuid}: ${body}`);
    }
    return problems;
  }

  async #checkImages(): Promise<string[]> {
    const problems: string[] = [];
    for (const [uuid, facts] of this.images) {
      for (const [path, content] of [["", ""] as const, ...facts.files]) {
        const before = facts.deletion;
        const place = path === "" ? `/inspect/${uuid}/` : `/inspect/${uuid}/download?path=${encodeURIComponent(path)}`;
        const { status, text } = await this.#get(place);
        if (before === "requested" && facts.deletion === "requested" && status === 404) facts.deletion = "done";
        const mayBeThere = before !== "done";
        const mayBeGone = before !== "none" || facts.deletion !== "none";
        const isRight = status === 200 ? mayBeThere && (path === "" || text === content) : status === 404 && mayBeGone;
        if (!isRight) problems.push(`image ${uuid} (deletion ${before}): ${path}: ${status} ${text.slice(0, 200)}`);
        if (facts.deletion === "done") break;
      }
    }
    return problems;
  }

  async #checkTags(): Promise<string[]> {
    const problems: string[] = [];
    for (const [tag, holders] of this.tags) {
      const askedBefore = this.tagsAsked;
      const isQuiet = askedBefore === this.tagsAnswered;
      const response = await this.#appliance.fetch(`/inspect/?tag=${encodeURIComponent(tag)}`);
      const location = response.headers.get("location");
      const holder = response.status === 404 ? null : (/inspect\/([0-9a-f-]{36})\//.exec(location ?? "")?.[1] ?? "?");
      if (!this.#mayHold(holders, holder)) {
        problems.push(`tag ${tag} is at ${holder} (${response.status}) and not at one of ${[...holders].join(", ")}`);
      } else if (isQuiet && askedBefore === this.tagsAsked) {
        // A state that was read while no change was under way is the state from now on.
        this.tags.set(tag, new Set([holder]));
      }
    }
    return problems;
  }

  /** A tag is removed with its image. */
  #mayHold(holders: ReadonlySet<string | null>, holder: string | null): boolean {
    if (holders.has(holder)) return true;
    return holder === null && [...holders].some((image) => this.images.get(image ?? "")?.deletion !== "none");
  }

  async #checkOperations(): Promise<string[]> {
    const problems: string[] = [];
    for (const id of [...this.#ended.keys(), ...this.#open]) {
      const { status, text } = await this.#get(`/operations/${id}`);
      if (status === 200) problems.push(...this.saw(id, JSON.parse(text) as OperationView));
      else problems.push(`operation ${id}: ${status} ${text}`);
    }
    const listed = new Set<string>();
    for (let offset = 0; ; offset += PAGE_COUNT) {
      const { status, text } = await this.#get(`/operations?limit=${PAGE_COUNT}&offset=${offset}`);
      if (status !== 200) return [...problems, `the list of operations: ${status} ${text}`];
      const page = JSON.parse(text) as { id: string }[];
      for (const { id } of page) listed.add(id);
      if (page.length < PAGE_COUNT) break;
    }
    for (const id of this.#ended.keys()) if (!listed.has(id)) problems.push(`operation ${id} is not listed`);
    return problems;
  }

  async #get(path: string): Promise<{ status: number; text: string }> {
    const response = await this.#appliance.fetch(path);
    return { status: response.status, text: await response.text() };
  }
}
