import { expect, test } from "bun:test";
import { writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { directOutside } from "../../../src/cli/doctor/outside.ts";
import { outsideFindings } from "../../../src/supervisor/health/outside.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { peer } from "../../support/network/peers.ts";
import { httpProxy, socksProxy } from "../../support/network/proxies.ts";
import { nameServer } from "../../support/network/site/name-server.ts";

const none = { resolvers: [], proxy: null, proxyCredentialsFile: null };
const short = async (...[settings]: Parameters<typeof directOutside>) =>
  (await outsideFindings(directOutside(settings))).map(({ name, state, summary }) => [name, state, summary]);

test("doctor reports which name servers send any answer", async () => {
  await using missing = await nameServer(() => null);
  await using failing = await nameServer(() => "failure");
  await using silent = await nameServer(() => "silence");
  const good = [missing.address, failing.address];
  expect(await short({ ...none, resolvers: good })).toEqual([["name servers", "ok", `${good.join(", ")} answer`]]);
  const [finding] = await outsideFindings(directOutside({ ...none, resolvers: [...good, silent.address] }));
  expect(finding).toMatchObject({ state: "note", summary: `${silent.address} does not answer` });
  expect(finding?.meaning).toStartWith("names take longer");
  const [worst] = await outsideFindings(directOutside({ ...none, resolvers: [silent.address] }));
  expect(worst?.meaning).toStartWith("imports and sandboxes reach nothing by a name");
  // Only the name servers themselves get the question.
  expect(missing.asked).toEqual(["invalid 1", "invalid 1"]);
});

test("doctor reports whether the site's proxy accepts requests", async () => {
  await using names = await nameServer(() => null);
  await using scratch = await scratchDirectory(tmpdir(), "coppice-doctor-");
  const credentials = join(scratch.path, "credentials");
  await writeFile(credentials, "alice:s3cret pass\n", { mode: 0o600 });
  await using http = await httpProxy(503);
  await using socks = await socksProxy(4);
  await using other = await peer((socket) => void socket.end("220 mail.example ESMTP\r\n"));
  const gone = await peer();
  await gone[Symbol.asyncDispose]();
  const proxy = async (kind: "http" | "socks5", port: number, file: string | null) => {
    const settings = {
      resolvers: [names.address],
      proxy: { kind, host: "127.0.0.1", port },
      proxyCredentialsFile: file,
    };
    return (await short(settings))[1];
  };
  expect(await proxy("http", http.port, credentials)).toEqual(["proxy", "ok", `127.0.0.1 port ${http.port} answers`]);
  expect(await proxy("socks5", socks.port, credentials)).toEqual([
    "proxy",
    "ok",
    `127.0.0.1 port ${socks.port} answers`,
  ]);
  const [rejected, wrong, down, open] = [
    await proxy("http", http.port, null),
    await proxy("http", other.port, credentials),
    await proxy("http", gone.port, credentials),
    await proxy("http", http.port, join(scratch.path, "missing")),
  ];
  expect(rejected?.[2]).toBe(`127.0.0.1 port ${http.port}: the site's proxy does not accept the credentials (407)`);
  expect(wrong?.[2]).toBe(`127.0.0.1 port ${other.port}: the site's proxy does not speak HTTP`);
  expect(down?.[2]).toBe(`127.0.0.1 port ${gone.port}: connection refused`);
  expect(open?.[2]).toContain("cannot be read: ENOENT");
  expect([rejected, wrong, down, open].map((each) => each?.[1])).toEqual(["problem", "problem", "problem", "problem"]);
});
