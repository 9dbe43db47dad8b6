import { describe, expect, test } from "bun:test";
import { configOf, configProblems } from "../../support/config.ts";

const TLS = { "e2b-tls-cert": "/c", "e2b-tls-key": "/k" };

describe("the settings of the listener for clients of E2B", () => {
  test("are absent by default", () => {
    expect(configOf({}).e2b).toBeNull();
    expect(configOf({ "e2b-domain": "box.example" }).e2b).toBeNull();
  });

  test("are an address, and what answers tell", () => {
    expect(configOf({ "e2b-listen": "127.0.0.1:8643" }).e2b).toEqual({
      ...{ host: "127.0.0.1", port: 8643, tls: null, isBehindProxy: false },
      ...{ domain: null, defaultUser: "user", hasPublicPorts: true },
    });
    const flags = {
      ...{ "e2b-domain": "box.example:8443", "e2b-behind-proxy": "true", "e2b-default-user": "me" },
      ...{ "e2b-public-ports": "false", ...TLS },
    };
    expect(configOf({ "e2b-listen": "[::]:8443", ...flags }).e2b).toEqual({
      ...{ host: "::", port: 8443, tls: { cert: "/c", key: "/k" }, isBehindProxy: true },
      ...{ domain: "box.example:8443", defaultUser: "me", hasPublicPorts: false },
    });
  });

  test.each(["8643", "127.0.0.1:0", ":80", "http://a:80"])("refuse the address %s", (text) => {
    expect(configProblems({ "e2b-listen": text })[0]).toContain("must be an address and a port");
  });

  test.each(["A.example", "a..b", "a:0", "a:", "*.a"])("refuse the domain %s", (text) => {
    expect(configProblems({ "e2b-domain": text })[0]).toContain("must be a name in lower case");
  });

  test.each(["", "Root", "a b", "1a", "a".repeat(33)])("refuse the user %p", (text) => {
    expect(configProblems({ "e2b-default-user": text })[0]).toContain("must be the name of a user");
  });

  test("need TLS or consent for other machines, both files of TLS, and a domain without the host of the API", () => {
    expect(configProblems({ "e2b-listen": "0.0.0.0:80" })).toEqual([
      "e2b.listen 0.0.0.0:80 is reachable from other machines: set e2b.tls_cert and e2b.tls_key, or listen.insecure = true",
    ]);
    expect(configProblems({ "e2b-listen": "0.0.0.0:80", ...TLS })).toEqual([]);
    expect(configProblems({ "e2b-listen": "0.0.0.0:80", "listen-insecure": "true" })).toEqual([]);
    expect(configProblems({ "e2b-tls-key": "/k" })).toEqual(["e2b.tls_cert and e2b.tls_key belong together"]);
    const listen = { "e2b-listen": "127.0.0.1:80", "e2b-domain": "box.example:8443" };
    expect(configProblems({ ...listen, "public-url": "https://api.box.example" })[0]).toContain(
      "could set its cookies",
    );
    expect(configProblems({ ...listen, "public-url": "https://example" })).toEqual([]);
  });
});
