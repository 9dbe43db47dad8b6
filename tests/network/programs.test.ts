import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { entryOf, Guest, verdicts } from "../support/network/guest.ts";
import { ring } from "../support/network/ring.ts";
import { ADDRESSES } from "../support/network/site/site.ts";
import { type Body, resultOf } from "../support/runs.ts";

setDefaultTimeout(180_000);

const CA = "/usr/local/share/ca.crt";
const APT =
  "echo 'deb [trusted=yes] http://deb.test/deb ./' > /etc/apt/sources.list && apt-get -q update && apt-get -q -y install hello-program";

let guest: Guest;

beforeAll(async () => {
  guest = await Guest.start();
});

afterAll(async () => {
  await guest[Symbol.asyncDispose]();
});

test("apt-get installs a package with its dependencies; the image has nothing else, and its history has the network", async () => {
  const { appliance, image } = ring();
  const network = { allow: [{ host: "deb.test", ports: [80] }] };
  const operation = await appliance.run(image, `{ ${APT}; } >&2 && hello-program`, { network, timeout: 170 });
  const result = resultOf(operation);
  expect([result.exit_code, result.out]).toEqual([0, "hello from a package\n"]);
  const installed = String(result.image);
  const diff = (await (await appliance.fetch(`/images/${installed}/diff?limit=1000`)).json()) as {
    items: { path: string }[];
  };
  const own =
    /^\/(?:var\/(?:lib|cache|log)\/(?:apt|dpkg|debconf)|usr\/bin\/hello-program|usr\/share\/hello-words|etc\/apt\/sources\.list|tmp|var\/(?:lib|cache|log)$)/;
  const paths = diff.items.map(({ path }) => path);
  expect(paths).toContain("/usr/bin/hello-program");
  expect(paths.filter((path) => !own.test(path))).toEqual([]);
  const lineage = (await (await appliance.fetch(`/images/${installed}/lineage`)).json()) as Body[];
  expect(lineage.filter(({ network }) => network === true).map(({ uuid }) => uuid)).toEqual([installed]);
  // The next run has no network, and still has the program.
  expect(resultOf(await appliance.run(installed, "hello-program", { disposable: true })).out).toBe(
    "hello from a package\n",
  );
});

test("a run that got a file leaves that file, and nothing of its network", async () => {
  const { appliance, image } = ring();
  const network = { allow: [{ host: "www.test" }] };
  const command = "curl -sS -o /srv/got http://www.test/bytes/5; ip address >&2; cat /etc/resolv.conf >&2";
  const result = resultOf(await appliance.run(image, command, { network }));
  expect(result.err).toContain("No such file or directory");
  const diff = await (await appliance.fetch(`/images/${result.image}/diff`)).json();
  expect((diff as { items: { path: string }[] }).items.map(({ path }) => path)).toEqual(["/srv/got"]);
});

test("pip installs a source distribution, and the wheel that it needs", async () => {
  const flags = "--break-system-packages --no-build-isolation --disable-pip-version-check --quiet";
  await guest.output(`pip install ${flags} --cert ${CA} --index-url https://pypi.test/pypi/simple/ test-greeting`);
  expect(await guest.output("python3 -c 'import test_greeting; test_greeting.greet()'")).toBe("hello from a wheel");
});

test("npm installs a package with its dependencies", async () => {
  const flags = "--no-audit --no-fund --no-update-notifier --registry https://npm.test/npm/";
  const install = `mkdir /tmp/n && cd /tmp/n && NODE_EXTRA_CA_CERTS=${CA} npm install ${flags} test-greeting`;
  await guest.output(install);
  expect(await guest.output("cd /tmp/n && node -e 'require(\"test-greeting\")'")).toBe("hello from npm");
});

test("git clones over HTTP", async () => {
  await guest.output(`git -c http.sslCAInfo=${CA} clone -q https://git.test/git/words.git /tmp/words`);
  expect(await guest.output("cat /tmp/words/words")).toBe("hello from git");
});

test("curl and wget get and post, with and without TLS, by name and by address", async () => {
  const script = [
    `curl -sS --cacert ${CA} https://www.test/bytes/100000 | wc -c`,
    "wget -q -O - http://www.test/bytes/1000000 | wc -c",
    "head -c 3000000 /dev/zero | curl -sS --data-binary @- http://www.test/count; echo",
    `curl -sS http://${ADDRESSES.web}/bytes/10 | wc -c`,
    `curl -sS -g 'http://[${ADDRESSES.web6}]/bytes/11' | wc -c`,
    "curl -sS http://six.test/bytes/12 | wc -c",
    "curl -sS -L 'http://www.test/to?http://other.test/bytes/13' | wc -c",
  ];
  expect((await guest.output(script.join("\n"))).split("\n")).toEqual([
    ...["100000", "1000000", '{"bytes":3000000}', "10", "11", "12", "13"],
  ]);
});

test("clients in Go and Node.js get", async () => {
  expect(await guest.output("hey -n 4 -c 2 http://www.test/bytes/5")).toMatch(/\[200\]\s+4 responses/);
  const script = "fetch('http://www.test/bytes/7').then(async (r) => console.log((await r.arrayBuffer()).byteLength))";
  expect(await guest.output(`node -e "${script}"`)).toBe("7");
});

test("the audit has the connections of each program, with their bytes", async () => {
  const { result, audit } = await guest.end();
  expect(result["exit_code"]).toBe(0);
  expect(audit.truncated).toBe(false);
  expect(audit.entries.map(({ verdict }) => verdict)).toEqual(audit.entries.map(() => "allowed"));
  const hosts = new Set(audit.entries.map(({ host }) => host));
  const expected = [
    "git.test",
    "npm.test",
    "other.test",
    "pypi.test",
    "six.test",
    "www.test",
    ADDRESSES.web,
    ADDRESSES.web6,
  ];
  expect([...hosts].sort()).toEqual([...expected].sort());
  expect(verdicts(audit, ADDRESSES.web)).toEqual(["80 allowed 1"]);
  const { addresses, bytes_sent, bytes_received } = entryOf(audit, "six.test", "allowed");
  expect(addresses).toEqual([ADDRESSES.web6]);
  // The request with its head, and the answer with its own.
  expect(bytes_sent).toBeGreaterThan(50);
  expect(bytes_received).toBeGreaterThan(12 + 50);
  const posted = audit.entries.find(({ host, port }) => host === "www.test" && port === 80) as unknown as Body;
  expect(Number(posted["bytes_sent"])).toBeGreaterThan(3_000_000);
  expect(Number(posted["bytes_received"])).toBeGreaterThan(1_000_000);
});
