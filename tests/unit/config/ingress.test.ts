import { describe, expect, test } from "bun:test";
import { parsePortHost, portUrl } from "../../../src/domain/ingress.ts";
import { configOf, configProblems } from "../../support/config.ts";
import { newId } from "../../support/database.ts";

const TLS = { "ingress-tls-cert": "/c", "ingress-tls-key": "/k" };

describe("the settings of the ingress", () => {
  test("are absent by default", () => {
    expect(configOf({}).ingress).toBeNull();
    expect(configOf({ "ingress-listen": "" }).ingress).toBeNull();
  });

  test("are an address, a domain, and what it allows", () => {
    expect(configOf({ "ingress-listen": "127.0.0.1:8644" }).ingress).toEqual({
      ...{ host: "127.0.0.1", port: 8644, tls: null, isBehindProxy: false, allowsPublic: false },
      address: { scheme: "http", domain: "localhost", port: 8644 },
    });
    const flags = { "ingress-domain": "a.example", "ingress-public": "allow", "ingress-behind-proxy": "true", ...TLS };
    expect(configOf({ "ingress-listen": "[::]:443", ...flags }).ingress).toEqual({
      ...{ host: "::", port: 443, tls: { cert: "/c", key: "/k" }, isBehindProxy: true, allowsPublic: true },
      address: { scheme: "https", domain: "a.example", port: null },
    });
    const urls = { "ingress-listen": "[::1]:8443", ...TLS };
    expect(configOf(urls).ingress?.address).toEqual({ scheme: "https", domain: "localhost", port: 8443 });
  });

  test.each(["8644", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", ":80", "a b:80", "http://a:80"])(
    "refuse %s",
    (text) => {
      expect(configProblems({ "ingress-listen": text })[0]).toContain("must be an address and a port");
    },
  );

  test.each(["A.example", ".example", "a..b", "a.example.", "-a", "a:80"])("refuse the domain %s", (text) => {
    expect(configProblems({ "ingress-domain": text })[0]).toContain("must be a name in lower case");
  });

  test("need TLS or consent for other machines, both files of TLS, and a domain without the host of the API", () => {
    expect(configProblems({ "ingress-listen": "0.0.0.0:80" })[0]).toContain("listen.insecure");
    expect(configProblems({ "ingress-listen": "0.0.0.0:80", ...TLS })).toEqual([]);
    expect(configProblems({ "ingress-listen": "0.0.0.0:80", "listen-insecure": "true" })).toEqual([]);
    expect(configProblems({ "ingress-tls-cert": "/c" })).toEqual([
      "ingress.tls_cert and ingress.tls_key belong together",
    ]);
    const listen = { "ingress-listen": "127.0.0.1:80", "ingress-domain": "box.example" };
    for (const [host, count] of [
      ["box.example", 1],
      ["api.box.example", 1],
      ["example", 0],
      ["mybox.example", 0],
    ] as const) {
      expect(configProblems({ ...listen, "public-url": `https://${host}` })).toHaveLength(count);
    }
  });
});

describe("the host of a port", () => {
  test("is the one of its address", () => {
    const id = newId<never>();
    const url = portUrl({ scheme: "https", domain: "box.example", port: 8443 }, id, 80);
    expect(url).toBe(`https://80-${id}.box.example:8443/`);
    expect(parsePortHost(new URL(url).host, "box.example")).toEqual({ port: 80, sandbox: { id } });
    expect(portUrl({ scheme: "http", domain: "localhost", port: null }, id, "{port}")).toBe(
      `http://{port}-${id}.localhost/`,
    );
  });

  test("may name an account with dots", () => {
    const sandbox = { accountId: "ann.lee" as never, name: "my-box-2" };
    expect(parsePortHost("3000-my-box-2.ann.lee.localhost", "localhost")).toEqual({ port: 3000, sandbox });
    expect(parsePortHost(`3000-${"a".repeat(300)}.ann.localhost`, "localhost")).toBeNull();
  });
});
