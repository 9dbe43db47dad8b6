import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { ACCOUNT_LIMITS } from "../../src/domain/account/limits.ts";
import { run } from "../../src/system/exec.ts";
import { UNKNOWN_UUID } from "../support/api/samples.ts";
import { CONTREE, Contree, contreeError } from "../support/contree/contree.ts";
import { pushImage } from "../support/images/images.ts";

const MTIME = 1_640_995_200;
const MANY_FILES_COUNT = 2000;
const LATIN1_NAME = Buffer.from([0x6e, 0xe9]);

let contree: Contree;
let image = "";

beforeAll(async () => {
  contree = await Contree.start();
  const directory = { type: "directory", mode: 0o755, mtime: MTIME } as const;
  const reference = await pushImage(contree.registry, "tree:1", {
    layers: [
      [
        { path: "etc", ...directory },
        { path: "etc/passwd", mode: 0o644, uid: 7, gid: 8, mtime: MTIME, content: "root:x:0:0\n" },
        { path: "etc/alias", type: "symlink", target: "passwd", mtime: MTIME },
        { path: "etc/page.html", content: "<p>" },
        { path: "etc/a#b c+d", content: "odd" },
        { path: Buffer.concat([Buffer.from("etc/"), LATIN1_NAME]), content: "latin1" },
        { path: "bin", ...directory },
        { path: "bin/twice", mode: 0o4755, content: "x" },
        { path: "bin/other", type: "hardlink", target: "bin/twice" },
        { path: "run", ...directory },
        { path: "run/pipe", type: "fifo", mode: 0o600 },
        { path: "run/loop", type: "symlink", target: "loop" },
        { path: "many", ...directory },
        ...Array.from({ length: MANY_FILES_COUNT }, (_, index) => ({ path: `many/file-${index}`, content: "" })),
      ],
    ],
  });
  image = await contree.appliance.importImage(reference, `${contree.registry.host}/tree:1`);
});
afterAll(() => contree[Symbol.asyncDispose]());

const get = (path: string) => contree.call("GET", `/inspect/${image}/${path}`);
const entries = async (path: string) => {
  const { json } = await get(`list?path=${path}`);
  return Object.fromEntries(json.files.map((item: { path: string }) => [item.path, item]));
};

describe("GET /inspect/?tag=", () => {
  test("leads to the image by a relative address, with and without the slash", async () => {
    const tag = `${contree.registry.host}/tree:1`;
    for (const [path, location] of [
      [`/inspect/?tag=${tag}`, `${image}/`],
      [`/inspect?tag=${encodeURIComponent(tag)}`, `inspect/${image}/`],
    ]) {
      const answer = await contree.call("GET", path ?? "");
      expect([answer.status, answer.headers.get("location")]).toEqual([302, location ?? ""]);
      const target = new URL(location ?? "", `${contree.appliance.url}${CONTREE}${path}`);
      expect(target.pathname).toBe(`${CONTREE}/inspect/${image}/`);
    }
  });

  test("an unknown tag is 404; no tag, an empty one and a malformed one are 400", async () => {
    contreeError(await contree.call("GET", "/inspect/?tag=nothing"), 404, "not_found");
    for (const query of ["", "?tag=", "?tag=-a", "?tag=a%20b", "?tag=a&tag=b"]) {
      contreeError(await contree.call("GET", `/inspect/${query}`), 400, "validation_error");
    }
  });
});

describe("GET /inspect/{uuid}/list", () => {
  test("has every field of an entry", async () => {
    const { json } = await get("list?path=/etc");
    expect(json.path).toBe("/etc");
    const file = json.files.find((item: { path: string }) => item.path === "passwd");
    expect(file).toEqual({
      path: "passwd",
      size: 11,
      owner: 7,
      group: 8,
      uid: 7,
      gid: 8,
      mode: 0o100644,
      mtime: MTIME,
      nlink: 1,
      is_dir: false,
      is_regular: true,
      is_symlink: false,
      is_socket: false,
      is_fifo: false,
      symlink_to: "",
    });
  });

  test("distinguishes the types, in the flags and in the bits of mode", async () => {
    const [etc, bin, run] = await Promise.all([entries("/etc"), entries("/bin"), entries("/run")]);
    expect(etc["alias"]).toMatchObject({ is_symlink: true, symlink_to: "passwd", mode: 0o120777 });
    expect(bin["twice"]).toMatchObject({ is_regular: true, mode: 0o104755, nlink: 2 });
    expect(run["pipe"]).toMatchObject({ is_fifo: true, is_regular: false, mode: 0o010600 });
    expect((await entries("/"))["etc"]).toMatchObject({ is_dir: true, mode: 0o040755, mtime: MTIME });
    expect(Object.keys(etc)).toContain("n\u{fffd}");
  });

  test("echoes the path of the request, also with two slashes", async () => {
    for (const path of ["//etc", "/etc/", "/etc/."]) {
      const { json } = await get(`list?path=${path}`);
      expect(json.path).toBe(path);
      expect(json.files.length).toBe((await get("list?path=/etc")).json.files.length);
    }
  });

  test("text is a line for each entry, in every form of the flag", async () => {
    for (const flag of ["text", "text=", "text=1", "text=true"]) {
      const answer = await get(`list?path=/etc&${flag}`);
      expect(answer.headers.get("content-type")).toStartWith("text/plain");
      expect(answer.text).toMatch(/^-rw-r--r-- 1 7 8 11 \S+ passwd$/m);
      expect(answer.text).toMatch(/^lrwxrwxrwx 1 0 0 \d+ \S+ alias -> passwd$/m);
    }
    for (const flag of ["text=0", "text=false"]) {
      expect((await get(`list?path=/etc&${flag}`)).json.files.length).toBeGreaterThan(3);
    }
    for (const flag of ["text=2", "text=yes", "text=constructor", "text=1&text=1"]) {
      contreeError(await get(`list?path=/etc&${flag}`), 400, "validation_error");
    }
  });

  test("a long listing is sent in chunks, without a length", async () => {
    const answer = await get("list?path=/many");
    expect(answer.json.files).toHaveLength(MANY_FILES_COUNT);
    expect(answer.bytes.length).toBeGreaterThan(65_536);
    expect(answer.headers.get("content-length")).toBeNull();
  });

  test("a missing path is 404, a file is 422, a request without a path is 400", async () => {
    contreeError(await get("list?path=/none"), 404, "not_found");
    contreeError(await get("list?path=/etc/none/deeper"), 404, "not_found");
    contreeError(await get("list?path=/etc/passwd"), 422, "invalid_path");
    contreeError(await get("list?path=relative"), 422, "invalid_path");
    contreeError(await get("list"), 400, "validation_error");
    contreeError(await contree.call("GET", `/inspect/${UNKNOWN_UUID}/list?path=/`), 404, "not_found");
    contreeError(await contree.call("GET", "/inspect/not-a-uuid/list?path=/"), 400, "validation_error");
  });
});

describe("GET, HEAD /inspect/{uuid}/download", () => {
  test("the bytes, through links and with any name", async () => {
    for (const path of ["/etc/passwd", "//etc/passwd", "/etc/alias"]) {
      expect((await get(`download?path=${path}`)).text).toBe("root:x:0:0\n");
    }
    expect((await get("download?path=/etc/a%23b%20c%2Bd")).text).toBe("odd");
    expect((await get("download?path=/etc/n%E9")).text).toBe("latin1");
  });

  test("text gives text/plain", async () => {
    expect((await get("download?path=/etc/page.html&text=")).headers.get("content-type")).toStartWith("text/plain");
    expect((await get("download?path=/etc/page.html")).headers.get("content-type")).toStartWith("text/html");
  });

  test.each([
    ["/etc/passwd", 200, null],
    ["/none", 404, "not_found"],
    ["/etc", 422, "invalid_path"],
    ["/run/pipe", 422, "invalid_path"],
    ["/run/loop", 422, "invalid_path"],
  ] as const)("%s is %d", async (path, status, code) => {
    const answer = await get(`download?path=${path}`);
    if (code === null) expect(answer.status).toBe(status);
    else contreeError(answer, status, code);
    expect((await contree.call("HEAD", `/inspect/${image}/download?path=${path}`)).status).toBe(status);
  });
});

describe("GET, HEAD /inspect/{uuid}/archive", () => {
  /** The archive as it is on the wire. */
  const fetchArchive = (path: string, encoding: string): Promise<Response> =>
    fetch(`${contree.appliance.url}${CONTREE}/inspect/${image}/archive?path=${path}`, {
      headers: { authorization: `Bearer ${contree.appliance.token}`, "accept-encoding": encoding },
      decompress: false,
    });
  const namesOf = async (archive: Uint8Array, flags: string): Promise<string[]> => {
    const { stdout } = await run({ argv: ["tar", flags, "-"], stdin: archive, timeoutMs: 10_000 });
    return Buffer.from(stdout).toString("utf8").trim().split("\n");
  };

  test.each([
    ["/etc", "etc.tar"],
    ["/bin/twice", "bin_twice.tar"],
    ["//bin//twice", "bin_twice.tar"],
    ["/", "root.tar"],
    ["/etc/a%23b%20c%2Bd", "etc_a_b_c_d.tar"],
  ])("%s is named %s", async (path, name) => {
    const answer = await fetchArchive(path, "identity");
    expect(answer.headers.get("content-disposition")).toBe(`attachment; filename="${name}"`);
    expect(answer.headers.get("content-type")).toBe("application/x-tar");
    await answer.body?.cancel();
  });

  test("a directory's entries are relative to it, a file stands alone by its name", async () => {
    const directory = await (await fetchArchive("/bin", "identity")).bytes();
    expect((await namesOf(directory, "-tf")).map((name) => name.replace(/^\.\//, ""))).toContain("twice");
    const file = await (await fetchArchive("/bin/twice", "identity")).bytes();
    expect(await namesOf(file, "-tf")).toEqual(["twice"]);
  });

  test("HEAD and refusals free their places", async () => {
    for (let asked = 0; asked <= ACCOUNT_LIMITS.walks.max; asked++) {
      expect((await contree.call("HEAD", `/inspect/${image}/archive?path=/many`)).status).toBe(200);
      expect((await contree.call("HEAD", `/inspect/${image}/list?path=/many`)).status).toBe(200);
      expect((await get("archive?path=/run/pipe")).status).toBe(422);
    }
  });

  test("it is compressed when that is accepted", async () => {
    const answer = await fetchArchive("/etc", "gzip, deflate");
    expect(answer.headers.get("content-encoding")).toBe("gzip");
    expect((await namesOf(await answer.bytes(), "-tzf")).length).toBeGreaterThan(3);
  });

  test.each([
    ["/etc", 200, null],
    ["/etc/passwd", 200, null],
    ["/none", 404, "not_found"],
    ["/run/pipe", 422, "invalid_path"],
  ] as const)("%s is %d", async (path, status, code) => {
    const answer = await get(`archive?path=${path}`);
    if (code === null) expect(answer.status).toBe(status);
    else contreeError(answer, status, code);
    expect((await contree.call("HEAD", `/inspect/${image}/archive?path=${path}`)).status).toBe(status);
  });
});
