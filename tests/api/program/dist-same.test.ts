import { afterAll, beforeAll, expect, test } from "bun:test";
import { join, resolve } from "node:path";
import { Executable } from "../../support/executable.ts";

const UNKNOWN = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";
const MAIN = resolve(import.meta.dir, "../../../src/main.ts");
const METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] as const;
/** Headers of an answer, without those that name a time or a request. */
const HEADERS = ["content-type", "allow", "retry-after", "www-authenticate", "content-length", "location", "etag"];

/** One appliance of the pair: the same program, bundled or not. */
interface Side {
  readonly url: string;
  readonly token: string;
}

let stack: AsyncDisposableStack;
let built: Side;
let source: Side;

beforeAll(async () => {
  stack = new AsyncDisposableStack();
  const place = stack.use(await Executable.place());
  const serve = async (name: string, argv: readonly string[]): Promise<Side> => {
    const options = { cwd: place.directory, env: { PATH: "/usr/sbin:/usr/bin:/sbin:/bin", HOME: place.directory } };
    const data = ["--data-dir", join(place.directory, name)];
    const flags = ["--listen-port", "0", "--log-format", "json", "--pool-size", "0"];
    const child = Bun.spawn([...argv, "serve", ...data, ...flags], { ...options, stdout: "ignore", stderr: "pipe" });
    stack.defer(async () => {
      child.kill("SIGTERM");
      await child.exited;
    });
    let log = "";
    let url: string | undefined;
    for await (const chunk of child.stderr) {
      log += Buffer.from(chunk).toString("utf8");
      url = /"url":"(http[^"]+)"/.exec(log)?.[1];
      if (url !== undefined) break;
    }
    if (url === undefined) throw new Error(`${name} does not listen:\n${log}`);
    const create = [...argv, "token", "create", ...data, "--account", "alice"];
    const token = Bun.spawnSync(create, { ...options, timeout: 20_000 })
      .stdout.toString()
      .trim();
    return { url, token };
  };
  built = await serve("built", [place.path]);
  source = await serve("source", [process.execPath, MAIN]);
}, 60_000);

afterAll(() => stack.disposeAsync(), 60_000);

interface Call {
  readonly method: string;
  readonly path: string;
  readonly token?: "none" | "bad";
  readonly type?: string;
  readonly body?: string;
}

/** An answer without the ids and times in which two appliances differ. */
async function answer(side: Side, { method, path, token, type, body }: Call): Promise<string> {
  const headers = new Headers();
  if (token !== "none") headers.set("authorization", `Bearer ${token === "bad" ? "eyJ.a.b" : side.token}`);
  if (type !== undefined) headers.set("content-type", type);
  const init: RequestInit = { method, headers, redirect: "manual", signal: AbortSignal.timeout(20_000) };
  const response = await fetch(side.url + path, body === undefined ? init : { ...init, body });
  const headerLines = HEADERS.flatMap((name) =>
    response.headers.has(name) ? [`${name}: ${response.headers.get(name)}`] : [],
  );
  const text = [
    `${method} ${path} ${token ?? ""} ${body ?? ""}`,
    response.status,
    ...headerLines,
    await response.text(),
  ];
  return text
    .join("\n")
    .replaceAll(side.url, "URL")
    .replaceAll(/[0-9a-f]{8}-[0-9a-f]{4}-[47][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}/g, "UUID")
    .replaceAll(/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z/g, "TIME")
    .replaceAll(/ nonce="[^"]+"/g, ' nonce="NONCE"')
    .replaceAll(/"keyid":"[0-9a-f]{64}"/g, '"keyid":"KEY"')
    .replaceAll(/-----BEGIN PUBLIC KEY-----[^-]+-----END PUBLIC KEY-----/g, "KEY")
    .replaceAll(/"token_expiration":\d+/g, '"token_expiration":N')
    .replaceAll(/"duration_ms":\d+/g, '"duration_ms":N');
}

/** Sends the calls to both, one after the other, and compares the answers. */
async function expectSame(calls: readonly Call[]): Promise<void> {
  for (const call of calls) expect(await answer(built, call)).toBe(await answer(source, call));
}

test("the description and the pages of the interface", async () => {
  await expectSame(["/openapi.json", "/docs", "/healthz", "/", "/v1", "/v1/"].map((path) => ({ method: "GET", path })));
});

test("every path with every method, with valid and invalid requests", async () => {
  const description = (await (await fetch(`${built.url}/openapi.json`)).json()) as { paths: Record<string, object> };
  const paths = Object.keys(description.paths);
  expect(paths.length).toBeGreaterThan(8);
  const calls = paths.flatMap((template) =>
    [UNKNOWN, "no-uuid", "%2e%2e%2f"].flatMap((id) => {
      const path = template.replaceAll(/\{[^}]+\}/g, id);
      if (path === template && id !== UNKNOWN) return [];
      return METHODS.flatMap((method): Call[] => [
        { method, path },
        { method, path, token: "none" },
        { method, path: `${path}?limit=0&offset=-1&wait=x&path=relative&uuid=1&tag=%00` },
        ...(method === "GET" || method === "HEAD" || path.endsWith("/files") ? [] : bodies(method, path)),
      ]);
    }),
  );
  // A stream of changes has no end.
  await expectSame(calls.filter(({ path }) => !/readyz|metrics|changes/.test(path)));
}, 120_000);

function bodies(method: string, path: string): Call[] {
  const type = "application/json";
  return [
    { method, path, type, body: "{}" },
    { method, path, type, body: "{" },
    { method, path, type, body: '{"tag":7,"registry":7,"image":7,"command":[],"timeout":"x"}' },
    { method, path, type: "text/plain", body: "{}" },
    { method, path, type, body: "{}", token: "bad" },
  ];
}

test("files, listings and operations of an account", async () => {
  const type = "application/json";
  const sha256 = new Bun.CryptoHasher("sha256").update("content").digest("hex");
  const spawn = { image: `tag:none`, command: "true" };
  await expectSame([
    { method: "POST", path: "/v1/files", type: "application/octet-stream", body: "content" },
    { method: "POST", path: "/v1/files", type: "application/octet-stream", body: "content" },
    { method: "GET", path: `/v1/files?sha256=${sha256}` },
    { method: "HEAD", path: `/v1/files?sha256=${sha256}` },
    { method: "GET", path: "/v1/images?limit=2&tagged=true&since=15m" },
    { method: "GET", path: "/v1/images?tagged=maybe" },
    { method: "POST", path: "/v1/images/import", type, body: '{"registry":"busybox"}' },
    { method: "POST", path: "/v1/images/import", type, body: '{"registry":"dir:/etc"}' },
    { method: "POST", path: "/v1/instances", type, body: JSON.stringify(spawn) },
    { method: "POST", path: "/v1/instances", type, body: JSON.stringify({ ...spawn, timeout: 0 }) },
    { method: "POST", path: "/v1/instances", type, body: JSON.stringify({ ...spawn, image: UNKNOWN, stdin: "é" }) },
    { method: "GET", path: "/v1/operations?status=FAILED" },
    { method: "GET", path: "/v1/operations?status=NONE" },
    { method: "GET", path: "/v1/operations?kind=instance&until=2h" },
    { method: "GET", path: "/v1/inspect/?tag=none" },
    { method: "GET", path: "/v1/inspect?tag=none" },
  ]);
});
