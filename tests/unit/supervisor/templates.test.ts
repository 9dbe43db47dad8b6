import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { eq } from "drizzle-orm";
import type { Database } from "../../../src/db/database.ts";
import { previewExpiry } from "../../../src/db/expiry.ts";
import { upsertFile } from "../../../src/db/files.ts";
import { getImage, imageDefaults } from "../../../src/db/images/images.ts";
import { layerIds } from "../../../src/db/images/layers.ts";
import { setTag } from "../../../src/db/images/tags.ts";
import { failOperation } from "../../../src/db/operations.ts";
import { beginBuild, buildLogOf, endBuild, findBuild, insertBuild } from "../../../src/db/templates/builds.ts";
import { buildFile, deriveImage, keepStep, keptStep, setBuildFile } from "../../../src/db/templates/cache.ts";
import { templateBuilds } from "../../../src/db/templates/schema.ts";
import { deleteTemplate, ensureTemplate, templateTagsOf } from "../../../src/db/templates/templates.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import type { ImageId } from "../../../src/domain/ids.ts";
import { silentLog } from "../../../src/log.ts";
import { EventLogs } from "../../../src/storage/events/event-logs.ts";
import { LayerStore } from "../../../src/storage/layers/layer-store.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import { AccountChanges } from "../../../src/supervisor/account-changes.ts";
import { Builds } from "../../../src/supervisor/templates/builds.ts";
import { addExecuting, alice, bob, databasePerTest, importImage } from "../../support/database.ts";

const DAY_MS = 86_400_000;
const CONFIG = { user: null, cwd: null, env: {}, startCmd: null, readyCmd: null };

let db: Database;
let directory: string;
databasePerTest((opened) => {
  db = opened.db;
  directory = opened.path.replace(/\/[^/]+$/, "");
});

let builds: Builds;
let now: number;
beforeEach(() => {
  now = 100 * DAY_MS;
  const clock = () => now;
  const layout = dataLayout(directory);
  const accounts = new Accounts();
  const layers = new LayerStore({ layout, chainOf: (topId) => layerIds(db, topId) });
  const eventLogs = new EventLogs(layout, accounts, () => 0n);
  const operations = {
    submit: () => Promise.reject(new Error("nothing runs")),
    cancel: () => "not_found" as const,
    waitForEnd: async () => undefined,
  };
  const changes = new AccountChanges();
  builds = new Builds({ db, layout, layers, clock, accounts, eventLogs, operations, changes, log: silentLog });
});
afterEach(() => builds[Symbol.asyncDispose]());

const exists = (id: ImageId) => getImage(db, alice, id) !== null;
const keep = (key: string, imageId: ImageId) => keepStep(db, { accountId: alice, key, imageId, now });

/** A build of `name` that is ready with the image. */
function ready(name: string, tag: string, imageId: ImageId): string {
  const template = ensureTemplate(db, alice, name, now);
  const id = crypto.randomUUID();
  insertBuild(db, { id, templateId: template.id, tags: [tag], config: CONFIG }, now);
  expect([beginBuild(db, id), beginBuild(db, id)]).toEqual([true, false]);
  expect(endBuild(db, id, { imageId, config: CONFIG }, { log: [], now })).toBe(true);
  return id;
}

describe("the image after a step", () => {
  test("is found by the account that made it, as long as it exists", () => {
    const image = importImage(db);
    keep("key", image);
    expect(keptStep(db, alice, "key", now)?.id).toBe(image);
    expect(keptStep(db, bob, "key", now)).toBeNull();
    expect(keptStep(db, alice, "other", now)).toBeNull();
  });

  test("is deleted a week after its last use, unless it has a tag", async () => {
    const [used, unused, tagged] = [importImage(db), importImage(db), importImage(db)];
    for (const [at, image] of [used, unused, tagged].entries()) keep(`key${at}`, image);
    setTag(db, alice, tagged, { name: "x", change: "added", now });
    now += 6 * DAY_MS;
    keptStep(db, alice, "key0", now);
    now += 2 * DAY_MS;
    await builds.expire();
    expect([used, unused, tagged].map(exists)).toEqual([true, false, true]);
    expect([0, 1, 2].map((at) => keptStep(db, alice, `key${at}`, now)?.id)).toEqual([used, undefined, undefined]);
  });

  test("is replaced by that of a forced step, and kept for builds that work on it", async () => {
    const [first, second] = [importImage(db), importImage(db)];
    keep("key", first);
    now += 6 * DAY_MS;
    for (const image of [second, first, second]) keep("key", image);
    expect(keptStep(db, alice, "key", now)?.id).toBe(second);
    now += 6 * DAY_MS;
    await builds.expire();
    expect([first, second].map(exists)).toEqual([true, true]);
    now += 2 * DAY_MS;
    await builds.expire();
    expect([first, second].map(exists)).toEqual([false, false]);
  });

  test("is deleted later when something uses it", async () => {
    const image = importImage(db);
    keep("key", image);
    const operation = addExecuting(db, { imageId: image });
    now += 8 * DAY_MS;
    await builds.expire();
    expect(exists(image)).toBe(true);
    failOperation(db, operation, { error: "conflict", message: "", details: {} }, now, null);
    await builds.expire();
    expect(exists(image)).toBe(true);
    now += 8 * DAY_MS;
    await builds.expire();
    expect(exists(image)).toBe(false);
  });

  test("does not expire as other images without a tag do", async () => {
    const [kept, other] = [importImage(db), importImage(db)];
    keep("key", kept);
    const bounds = { imagesBeforeMs: now - DAY_MS, mergedBeforeMs: 0, filesBeforeMs: null };
    expect((await previewExpiry(db, bounds, [])).images).toBe(1);
    now += 3 * DAY_MS;
    expect((await previewExpiry(db, { ...bounds, imagesBeforeMs: now - DAY_MS }, [])).images).toBe(2);
    expect([kept, other].map(exists)).toEqual([true, true]);
  });
});

describe("a build", () => {
  test("that no tag names is deleted after a week, with its image", async () => {
    const [first, second] = [importImage(db), importImage(db)];
    const old = ready("web", "default", first);
    const latest = ready("web", "default", second);
    const { id: templateId } = ensureTemplate(db, alice, "web", now);
    expect(templateTagsOf(db, templateId)).toMatchObject([{ tag: "default", buildId: latest }]);
    now += 8 * DAY_MS;
    await builds.expire();
    expect([old, latest].map((id) => findBuild(db, templateId, id) !== null)).toEqual([false, true]);
    expect([first, second].map(exists)).toEqual([false, true]);
  });

  test("keeps its log, and uploads their names, for a week", async () => {
    const id = ready("web", "default", importImage(db));
    const lines = [{ at: 1, level: "info", message: "x", step: null }];
    db.orm.update(templateBuilds).set({ log: lines }).where(eq(templateBuilds.id, id)).run();
    const file = upsertFile(db, { accountId: alice, sha256: "1".repeat(64), sizeBytes: 1, now });
    setBuildFile(db, { accountId: alice, hash: "2".repeat(64), fileId: file.id, now });
    const state = () => [buildLogOf(db, id).length, buildFile(db, alice, "2".repeat(64))?.id];
    now += 6 * DAY_MS;
    await builds.expire();
    expect(state()).toEqual([1, file.id]);
    now += 2 * DAY_MS;
    await builds.expire();
    expect(state()).toEqual([0, undefined]);
  });

  test("that a former process left fails, and one that waits still waits", () => {
    const template = ensureTemplate(db, alice, "web", now);
    const [running, waiting] = [crypto.randomUUID(), crypto.randomUUID()];
    for (const id of [running, waiting])
      insertBuild(db, { id, templateId: template.id, tags: [], config: CONFIG }, now);
    beginBuild(db, running);
    builds.recover();
    expect(findBuild(db, template.id, running)).toMatchObject({
      status: "error",
      reason: { message: "the service was restarted during the build" },
    });
    expect(findBuild(db, template.id, waiting)?.status).toBe("waiting");
  });

  test("ends nowhere when its template was deleted", () => {
    const image = importImage(db);
    const template = ensureTemplate(db, alice, "web", now);
    const id = crypto.randomUUID();
    insertBuild(db, { id, templateId: template.id, tags: ["default"], config: CONFIG }, now);
    beginBuild(db, id);
    deleteTemplate(db, template.id);
    expect(endBuild(db, id, { imageId: image, config: CONFIG }, { log: [], now })).toBe(false);
  });
});

test("an image with other defaults has the files of its parent, and a lineage", () => {
  const parent = getImage(db, alice, importImage(db));
  if (parent === null) throw new Error("no image");
  const image = deriveImage(db, parent, { variables: { A: "1" }, cwd: "/srv" }, now);
  expect(image).toMatchObject({ layerId: parent.layerId, parentId: parent.id, sizeBytes: 0 });
  expect(imageDefaults(db, image.id)).toEqual({ variables: { A: "1" }, cwd: "/srv" });
});
