import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { cli, ScriptedAppliance } from "../../support/cli/cli.ts";

let appliance: ScriptedAppliance;
beforeEach(() => {
  appliance = new ScriptedAppliance();
});
afterEach(() => appliance[Symbol.asyncDispose]());

const coppice = (...argv: string[]) => cli(argv, { environment: appliance.environment });

/** An appliance with this many images, the newest first; one more is added while they are read. */
function holds(count: number): void {
  const all = Array.from({ length: count }, (_, index) => ({
    uuid: `image-${count - index}`,
    created_at: new Date(1_700_000_000_000 + (count - index) * 1000).toISOString(),
  }));
  appliance.answer = ({ path }) => {
    const query = new URL(path, "http://x").searchParams;
    const [limit, offset, until] = [Number(query.get("limit")), Number(query.get("offset") ?? 0), query.get("until")];
    const page = all.filter(({ created_at: at }) => until === null || at <= until).slice(offset, offset + limit);
    all.unshift({ uuid: `late-${all.length}`, created_at: new Date(1_800_000_000_000 + all.length).toISOString() });
    return Response.json(page);
  };
}

const uuids = (stdout: Buffer): string[] =>
  (JSON.parse(stdout.toString()) as { uuid: string }[]).map(({ uuid }) => uuid);
const numbered = (count: number, length: number): string[] =>
  Array.from({ length }, (_, index) => `image-${count - index}`);

describe("listings", () => {
  test("--all reads page after page, and shows each image once, although new ones appear meanwhile", async () => {
    holds(2345);
    const { code, stdout, stderr } = await coppice("image", "ls", "--all", "--json");
    expect([code, stderr]).toEqual([0, ""]);
    expect(uuids(stdout)).toEqual(numbered(2345, 2345));
    expect(appliance.seen).toHaveLength(3);
  });

  test("--limit may exceed a page", async () => {
    holds(2345);
    const { stdout, stderr } = await coppice("image", "ls", "--limit", "1500", "--json");
    expect([uuids(stdout), stderr]).toEqual([numbered(2345, 1500), ""]);
  });

  test("a note outside the output says that entries are left out", async () => {
    holds(101);
    const { stdout, stderr } = await coppice("image", "ls", "--json");
    expect([uuids(stdout), stderr]).toEqual([numbered(101, 100), "these are the newest 100; --all lists everything\n"]);
    holds(99);
    expect((await coppice("image", "ls")).stderr).toBe("");
  });

  test("operations are listed the same way", async () => {
    appliance.answer = () => Response.json([]);
    const { stdout } = await coppice("op", "ls", "--all", "--kind", "instance");
    expect(stdout.toString()).toBe("ID  KIND  STATUS  CREATED  TOOK  OUTCOME\n");
    expect(appliance.seen.map(({ path }) => path)).toEqual(["/operations?kind=instance&limit=1000"]);
  });

  test("--all and --limit exclude each other", async () => {
    expect((await coppice("image", "ls", "--all", "--limit", "5")).code).toBe(2);
    expect(appliance.seen).toEqual([]);
  });
});
