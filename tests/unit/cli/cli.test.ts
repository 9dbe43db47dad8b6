import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { COMMANDS } from "../../../src/cli/commands.ts";
import { looksOf } from "../../../src/cli/io.ts";
import { printable, table } from "../../../src/cli/table.ts";
import { flagOf, keyNames } from "../../../src/config/config.ts";
import { openDatabase } from "../../../src/db/database.ts";
import { shownDuration, shownSize } from "../../../src/domain/text/shown.ts";
import { tokenVerifier } from "../../../src/service/tokens.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import { TokenKeys } from "../../../src/storage/token-keys.ts";
import { cgroupFinding, mountOptions, processorFinding, rootFinding } from "../../../src/supervisor/health/host.ts";
import { isolationFinding, probeFinding, rememberedVerdicts } from "../../../src/supervisor/health/trials.ts";
import { lockFile } from "../../../src/system/lock.ts";
import { cli } from "../../support/cli/cli.ts";
import { migrationNames, writeOlderDatabase } from "../../support/database.ts";

describe("help", () => {
  test.each(COMMANDS.map(({ name }) => name))("%s --help goes to standard output, exit code 0", async (name) => {
    const { code, stdout, stderr } = await cli([...name.split(" "), "--help"]);
    expect([code, stderr]).toEqual([0, ""]);
    expect(stdout.toString()).toStartWith(`Usage: coppice ${name}`);
    expect(await cli(["help", ...name.split(" ")])).toEqual({ code, stdout, stderr });
    expect(await cli([...name.split(" "), "-h"])).toEqual({ code, stdout, stderr });
  });

  test("the overview names every command", async () => {
    const { code, stdout } = await cli(["--help"]);
    expect(code).toBe(0);
    const width = Math.max(...COMMANDS.map(({ name }) => name.length));
    for (const { name, summary } of COMMANDS) expect(stdout.toString()).toContain(`${name.padEnd(width)}  ${summary}`);
  });

  test("no line is wider than a terminal", () => {
    const wide = COMMANDS.flatMap((command) => command.help().split("\n")).filter((line) => line.length > 110);
    expect(wide).toEqual([]);
  });

  test("serve has a flag for every setting", () => {
    const help = COMMANDS.find(({ name }) => name === "serve")?.help() ?? "";
    for (const name of keyNames()) expect(help).toMatch(new RegExp(`--${flagOf(name)} (VALUE|FILE|SIZE|DURATION)\\b`));
  });

  test.each(["token", "image", "op"])("%s --help lists its commands", async (group) => {
    const { code, stdout } = await cli([group, "--help"]);
    expect(code).toBe(0);
    for (const { name } of COMMANDS.filter((command) => command.name.startsWith(`${group} `))) {
      expect(stdout.toString()).toContain(name);
    }
    for (const argv of [
      ["help", group],
      [group, "-h"],
    ])
      expect(await cli(argv)).toMatchObject({ code, stdout });
  });
});

test.each([
  [false, {}, false, false],
  [true, {}, true, true],
  [true, { NO_COLOR: "1" }, false, true],
  [true, { NO_COLOR: "" }, true, true],
  [true, { TERM: "dumb" }, false, false],
])("a terminal: %p, with %j: colours %p, moving lines %p", (isTerminal, environment, colors, redraws) => {
  expect(looksOf(isTerminal, environment)).toEqual({ colors, redraws });
});

test.each([
  [[]],
  [["image"]],
  [["image", "burn"]],
  [["burn"]],
  [["--burn"]],
  [["version", "--burn"]],
  [["version", "extra"]],
  [["image", "import"]],
  [["image", "import", "a", "b"]],
  [["serve", "--listen-port", "many"]],
  [["serve", "--config", "/nonexistent/coppice.toml"]],
  [["stop", "--timeout", "soon"]],
  [["stop", "now"]],
  [["install", "--drain"]],
  [["install", "--start", "--drain", "30m"]],
  [["install", "--start", "--drain=soon"]],
  [["token", "create"]],
  [["bench"]],
  [["help", "burn"]],
])("%j is a wrong usage: exit code 2, standard error only", async (argv) => {
  const { code, stdout, stderr } = await cli(argv);
  expect([code, stdout.length]).toEqual([2, 0]);
  expect(stderr).not.toBe("");
  expect(stderr).not.toContain("please report");
});

test("help shows where a value may be left out", async () => {
  expect((await cli(["install", "--help"])).stdout.toString()).toMatch(/^ {2}--drain\[=DURATION\] /m);
});

test("version prints text or JSON", async () => {
  const { version } = JSON.parse(readFileSync(join(import.meta.dir, "../../../package.json"), "utf8"));
  expect((await cli(["version"])).stdout.toString()).toContain(`coppice ${version} `);
  expect(JSON.parse((await cli(["version", "--json"])).stdout.toString())).toMatchObject({ version, api: "v1" });
  expect((await cli(["--version"])).stdout.toString()).toBe(`coppice ${version}\n`);
});

describe("token", () => {
  let home: string;
  beforeAll(() => {
    home = mkdtempSync(join(tmpdir(), "coppice-token-"));
  });
  afterAll(() => rmSync(home, { recursive: true }));
  const token = (...argv: string[]) =>
    cli(["token", ...argv, "--data-dir", join(home, "data")], { environment: { HOME: home } });

  test("does not change the schema of a running appliance of an older version", async () => {
    const layout = dataLayout(join(home, "older"));
    await layout.ensure();
    const names = writeOlderDatabase(layout.database);
    const create = () => cli(["token", "create", "--account", "alice", "--data-dir", layout.root]);
    {
      using _daemon = lockFile(layout.lock);
      const refused = await create();
      expect([refused.code, refused.stderr]).toEqual([1, expect.stringContaining("older version than this program")]);
      using db = openDatabase(layout.database, "keep");
      expect(migrationNames(db)).toEqual(names);
    }
    expect((await create()).code).toBe(0);
  });

  /** The account of a token, as a running appliance determines it. */
  async function principal(text: string) {
    const layout = dataLayout(join(home, "data"));
    using db = openDatabase(layout.database);
    return await tokenVerifier(db, await TokenKeys.open(layout.keys), Date.now)(text);
  }

  test("create prints only the token, which the appliance accepts until it is revoked", async () => {
    const created = await token("create", "--account", "alice", "--scope", "images:read", "--scope", "files:read");
    expect([created.code, created.stdout.toString()]).toEqual([0, expect.stringMatching(/^eyJ\S+\n$/)]);
    const text = created.stdout.toString().trim();
    expect(await principal(text)).toMatchObject({ accountId: "alice", grants: new Set(["images:read", "files:read"]) });

    const [listed] = JSON.parse((await token("list", "--json")).stdout.toString());
    expect(listed).toMatchObject({ account: "alice", state: "valid", scopes: ["images:read", "files:read"] });
    const revoked = await token("revoke", listed.id, "--json");
    expect([revoked.code, JSON.parse(revoked.stdout.toString())]).toEqual([0, { id: listed.id, state: "revoked" }]);
    expect(await principal(text)).toBeNull();
    expect((await token("revoke", listed.id)).code).toBe(1);
    expect((await token("list")).stdout.toString()).toContain("revoked");
  });

  test("create creates a missing data directory, other commands do not", async () => {
    for (const argv of [["list"], ["revoke", "x"], ["rotate"]]) {
      const { code, stderr } = await cli(["token", ...argv, "--data-dir", join(home, "nowhere")]);
      expect(code).not.toBe(0);
      expect(stderr).toContain("there is no appliance's data in");
    }
    expect(existsSync(join(home, "nowhere"))).toBe(false);
  });

  test("--save writes it to a file that only the user can read, and prints nothing", async () => {
    const { code, stdout } = await token("create", "--account", "bob", "--save");
    expect([code, stdout.length]).toEqual([0, 0]);
    const file = join(home, ".config/coppice/token");
    expect(statSync(file).mode & 0o777).toBe(0o600);
    const facts = JSON.parse((await token("create", "--account", "bob", "--save", "--json")).stdout.toString());
    expect(facts).toEqual({ id: expect.any(String), account: "bob", scopes: ["*"], expires_at: expect.any(String) });
    expect(await principal(readFileSync(file, "utf8").trim())).toMatchObject({
      accountId: "bob",
      grants: new Set(["*"]),
    });
  });

  test("rotate without grace ends older tokens", async () => {
    const old = (await token("create", "--account", "carol")).stdout.toString().trim();
    expect(JSON.parse((await token("rotate", "--grace", "0", "--json")).stdout.toString())).toHaveProperty("key");
    const fresh = JSON.parse((await token("create", "--account", "carol", "--json")).stdout.toString()).token;
    expect(await principal(old)).toBeNull();
    expect(await principal(fresh)).toMatchObject({ accountId: "carol" });
  });

  test.each([
    [["--account", "a b"], "account"],
    [["--account", "a", "--scope", "everything"], "unknown scope"],
    [["--account", "a", "--ttl", "soon"], "--ttl must be a duration"],
  ])("create %j is refused", async (argv, message) => {
    const { code, stdout, stderr } = await token("create", ...argv);
    expect([code, stdout.length]).toEqual([2, 0]);
    expect(stderr).toContain(message);
  });
});

describe("doctor", () => {
  test("the processor must have AVX2", () => {
    expect(processorFinding("flags\t\t: fpu avx2 sse\n", "x64").state).toBe("ok");
    expect(processorFinding("flags\t\t: fpu avx2x sse\n", "x64").state).toBe("problem");
    expect(processorFinding("", "arm64").state).toBe("problem");
  });

  test("only root can start the jail", () => {
    expect(rootFinding(0)).toMatchObject({ state: "ok", fix: null });
    expect(rootFinding(1000)).toMatchObject({ state: "problem", fix: "sudo coppice doctor" });
  });

  test("without KVM and emulation, nothing can run", () => {
    expect(isolationFinding("never", false).state).toBe("problem");
    expect(isolationFinding("never", true).state).toBe("ok");
    expect(isolationFinding("allow", false).state).toBe("note");
  });

  test("verdicts of earlier boots are ignored, and the latest of each counts", () => {
    const memo = (boot: string, acceleration: string, ok: boolean, reason = "") => {
      return {
        key: `qemu\n${acceleration}\n7.2\nhash\n${boot}`,
        vmm: "qemu",
        acceleration,
        ok,
        reason,
        durationMs: 2100,
      };
    };
    const text = JSON.stringify([
      memo("old", "kvm", true),
      memo("b", "kvm", false, "slow"),
      memo("b", "tcg", true),
      {},
    ]);
    const verdicts = rememberedVerdicts(text, "b");
    expect(verdicts.map(({ acceleration, ok }) => [acceleration, ok])).toEqual([
      ["kvm", false],
      ["tcg", true],
    ]);
    const works = "QEMU with emulation works: booted, saved, cloned and given a disk in 2.1 s";
    expect(probeFinding(verdicts, true)).toMatchObject({ state: "ok", summary: works });
    const summary = `${works}, when the appliance was started`;
    expect(probeFinding(verdicts, false)).toMatchObject({ state: "ok", summary });
    const failed = { state: "problem", summary: "no way to run a VM works (tried for 2.1 s)" };
    expect(probeFinding(verdicts.slice(0, 1), true)).toMatchObject(failed);
    for (const bad of ["[]", "{", "7", "[1, null]"])
      expect(probeFinding(rememberedVerdicts(bad, "b"), false).state).toBe("note");
  });

  test("the finding on control groups follows from the mounts", () => {
    const v2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    const v1 = "33 32 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    expect(cgroupFinding(v2).state).toBe("ok");
    expect(cgroupFinding(v1 + v2).state).toBe("note");
    expect(cgroupFinding("22 1 0:1 / /proc rw - proc proc rw\n").state).toBe("problem");
  });

  test("a path belongs to its deepest and latest mount", () => {
    const mounts = [
      "1 0 8:1 / / rw,relatime - ext4 a rw",
      "2 1 8:2 / /var rw,noexec - ext4 b rw",
      "3 1 8:3 / /var/lib/x rw - ext4 c rw",
      "4 1 8:4 / /var/lib/x rw,nosuid - ext4 d rw",
    ].join("\n");
    expect(mountOptions(mounts, "/var/lib")).toEqual(["rw", "noexec"]);
    expect(mountOptions(mounts, "/var/lib/x/y")).toEqual(["rw", "nosuid"]);
    expect(mountOptions(mounts, "/variable")).toEqual(["rw", "relatime"]);
  });
});

test("formats sizes, durations and tables", () => {
  expect([0, 1023, 1024, 1_572_864, 12 * 1024 ** 3].map(shownSize)).toEqual([
    "0 B",
    "1023 B",
    "1.0 KiB",
    "1.5 MiB",
    "12 GiB",
  ]);
  const durations = [12, 1234, 185_000, 28_799_900].map(shownDuration);
  expect(durations).toEqual(["12 ms", "1.2 s", "3 min 5 s", "7 h 59 min"]);
  expect(
    table(
      ["A", "LONG"],
      [
        ["aaa", "b"],
        ["c", ""],
      ],
    ),
  ).toBe("A    LONG\naaa  b\nc\n");
  expect(printable("a\x1b[2J\n\u009b")).toBe("a\\033[2J\\012\\233");
});
