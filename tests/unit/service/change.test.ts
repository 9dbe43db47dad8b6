import { describe, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { ApiError } from "../../../src/domain/errors.ts";
import { createLog } from "../../../src/log.ts";
import { CHANGES, type Changed, change } from "../../../src/service/change.ts";
import { HOST_OPERATOR } from "../../../src/service/parts.ts";
import type { Service } from "../../../src/service/service.ts";
import type { SessionUseCases } from "../../../src/service/sessions.ts";
import { throwing } from "../../support/failures.ts";

type UseCases = Service & { readonly sessions: SessionUseCases };

/** Whether a use case changes something: exactly when its result comes from `change`. */
type Kind<Member> = Member extends (...args: never[]) => infer Result
  ? Awaited<Result> extends Changed<unknown>
    ? "changes"
    : "reads"
  : "data";

/** The types check this table: an entry that differs from the use case does not compile, and none can be missing. */
const USE_CASES: {
  readonly [Noun in keyof UseCases]: { readonly [Name in keyof UseCases[Noun]]: Kind<UseCases[Noun][Name]> };
} = {
  callers: { describe: "reads" },
  branches: {
    read: "reads",
    changes: "reads",
    pathLog: "reads",
    blame: "reads",
    receipt: "reads",
    receiptKey: "reads",
    previewDeletion: "reads",
  },
  images: {
    list: "reads",
    import: "changes",
    get: "reads",
    delete: "changes",
    setTag: "changes",
    addTag: "changes",
    removeTags: "changes",
    lineage: "reads",
    children: "reads",
    diff: "reads",
    save: "reads",
  },
  files: { upload: "changes", list: "reads", get: "reads" },
  instances: {
    bounds: "data",
    spawn: "changes",
    stats: "reads",
    checkpoint: "changes",
    fork: "changes",
    statsOnce: "reads",
    change: "changes",
    dial: "changes",
  },
  sandboxes: {
    find: "reads",
    open: "changes",
    list: "reads",
    get: "reads",
    memoryOf: "reads",
    networkRules: "reads",
    samples: "reads",
    wait: "reads",
    change: "changes",
    pause: "changes",
    resume: "changes",
    setDeadline: "changes",
    rollback: "changes",
    checkpoint: "changes",
    fork: "changes",
    forkMemory: "changes",
    states: "reads",
    end: "changes",
    events: "reads",
    eventArray: "reads",
  },
  templates: {
    diskBytes: "data",
    resolve: "reads",
    spawned: "reads",
    list: "reads",
    get: "reads",
    build: "reads",
    log: "reads",
    request: "changes",
    start: "changes",
    hasFiles: "reads",
    setFiles: "changes",
    tag: "changes",
    untag: "changes",
    setPublic: "changes",
    snapshot: "changes",
    snapshots: "reads",
    delete: "changes",
  },
  e2b: {
    open: "changes",
    fork: "changes",
    connect: "changes",
    pause: "changes",
    settled: "reads",
    list: "reads",
    record: "reads",
    recordOf: "reads",
    find: "reads",
    update: "changes",
    credentials: "data",
    uploads: "data",
    owners: "reads",
    // As `processes.attach`, it may resume a sandbox, which its journal has.
    use: "reads",
  },
  processes: {
    start: "changes",
    list: "reads",
    get: "reads",
    outputs: "reads",
    write: "changes",
    signal: "changes",
    run: "changes",
    follow: "changes",
    running: "reads",
    attach: "changes",
    resize: "changes",
  },
  guestFiles: {
    stat: "reads",
    user: "reads",
    list: "reads",
    read: "reads",
    write: "changes",
    makeDirectory: "changes",
    remove: "changes",
    move: "changes",
    join: "changes",
    change: "changes",
    watch: "reads",
  },
  ingress: {
    settings: "data",
    patternOf: "reads",
    link: "changes",
    find: "reads",
    isPublic: "reads",
    grantEnd: "reads",
    connect: "reads",
  },
  operations: {
    list: "reads",
    lines: "reads",
    imageSizes: "reads",
    get: "reads",
    wait: "reads",
    cancel: "changes",
    request: "reads",
    log: "reads",
    events: "reads",
    eventArray: "reads",
    outputs: "reads",
  },
  inspect: {
    byTag: "reads",
    image: "reads",
    withPath: "reads",
    list: "reads",
    listFollowed: "reads",
    entry: "reads",
    open: "reads",
    archive: "reads",
    find: "reads",
    grep: "reads",
  },
  status: { version: "data", readiness: "reads", metrics: "reads" },
  tokens: { list: "reads", issue: "changes", revoke: "changes", rotateKey: "changes" },
  appliance: { load: "reads", space: "reads", collection: "reads", collect: "changes", health: "reads" },
  sessions: { begin: "changes", find: "reads", isValid: "reads", end: "changes" },
};

const SOURCE = join(import.meta.dir, "../../../src");
/** The text of each file of a folder below src, by its path below that. */
function sourcesOf(folder: string): ReadonlyMap<string, string> {
  const names = readdirSync(join(SOURCE, folder), { recursive: true, encoding: "utf8" });
  const paths = names.filter((name) => name.endsWith(".ts")).map((name) => `${folder}/${name}`);
  return new Map(paths.map((path) => [path, readFileSync(join(SOURCE, path), "utf8")]));
}

/** The exported functions of the database that write rows. */
function writers(): string[] {
  return [...sourcesOf("db").values()].flatMap((text) =>
    text
      .split(/^export (?:async )?function /m)
      .slice(1)
      .filter((body) => /\.(?:insert|update|delete|transaction)\(/.test(body))
      .map((body) => /^\w+/.exec(body)?.[0] ?? ""),
  );
}

describe("a use case that changes something", () => {
  test("returns through one function", () => {
    const counts = Object.values(USE_CASES).map(
      (noun) => Object.values(noun).filter((kind) => kind === "changes").length,
    );
    // Besides an import with two ways to tag, processes are started and attached to in two ways each, and sandboxes forked and paused.
    const verbs = Object.values(CHANGES).flat();
    expect(counts.reduce((sum, count) => sum + count, 0)).toBe(verbs.length + 5);
    const text = [...sourcesOf("service").values()].join("\n").replace(/\s+/g, " ");
    for (const [noun, ofNoun] of Object.entries(CHANGES)) {
      for (const verb of ofNoun) {
        const isThere = text.includes(`noun: "${noun}", verb: "${verb}"`) || text.includes(`processChange("${verb}"`);
        expect([noun, verb, isThere]).toEqual([noun, verb, true]);
      }
    }
  });

  test("is in a file that uses `change` when it writes rows", () => {
    const names = writers();
    expect(names).toContain("insertToken");
    const bypassing = [...sourcesOf("service")].flatMap(([path, text]) => {
      const imported = [...text.matchAll(/^import \{([^}]*)\} from "[./]*\/db\//gm)].flatMap(([, list = ""]) =>
        list.split(","),
      );
      const writes = imported.map((name) => name.trim()).filter((name) => names.includes(name));
      return writes.length > 0 && !/\bchange\b.*from "\.{1,2}\/change\.ts"/.test(text) ? [[path, writes]] : [];
    });
    // It makes and stores a token for the use case that is an operator's.
    expect(bypassing).toEqual([["service/tokens.ts", ["insertToken"]]]);
  });
});

describe("a change", () => {
  const logged = () => {
    const lines: Record<string, unknown>[] = [];
    const write = (line: string) => void lines.push(JSON.parse(line));
    return { lines, parts: { log: createLog({ level: "debug", format: "json", write }) } };
  };
  const by = { account: "(host)", token_id: "" };

  test("is logged with the caller, the object and the outcome when it is made", async () => {
    const { lines, parts } = logged();
    const { promise, resolve } = Promise.withResolvers<string>();
    const what = { noun: "instance", verb: "spawn", id: (id: string) => id } as const;
    const spawned = change(parts, HOST_OPERATOR, what, () => promise);
    expect(lines).toEqual([]);
    resolve("new");
    expect(await spawned).toBe("new" as Changed<string>);
    change(parts, HOST_OPERATOR, { noun: "process", verb: "signal", id: "i/2" }, () => undefined);
    expect(lines).toMatchObject([
      { ...by, noun: "instance", verb: "spawn", id: "new", outcome: "done" },
      { ...by, noun: "process", verb: "signal", id: "i/2", outcome: "done" },
    ]);
  });

  test("that fails is logged with its error, and fails", async () => {
    const { lines, parts } = logged();
    const refused = () => {
      throw new ApiError("conflict", "in use");
    };
    expect(() => change(parts, HOST_OPERATOR, { noun: "image", verb: "tag", id: "i" }, refused)).toThrow("in use");
    const broken = change(parts, HOST_OPERATOR, { noun: "image", verb: "delete", id: "j" }, () =>
      Promise.reject(new Error("EIO")),
    );
    expect(await throwing(broken)).toThrow("EIO");
    expect(lines).toMatchObject([
      { ...by, noun: "image", verb: "tag", id: "i", outcome: "conflict" },
      { ...by, noun: "image", verb: "delete", id: "j", outcome: "internal_error" },
    ]);
  });
});
