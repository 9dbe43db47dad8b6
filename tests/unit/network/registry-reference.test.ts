import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { ApiError } from "../../../src/domain/errors.ts";
import { parseRegistryReference } from "../../../src/domain/registry-reference.ts";

const DIGEST = `sha256:${"0123456789abcdef".repeat(4)}`;

const refusal = (text: string, defaultRegistry?: string): string => {
  try {
    parseRegistryReference(text, defaultRegistry === undefined ? {} : { defaultRegistry });
  } catch (error) {
    expect(error).toBeInstanceOf(ApiError);
    expect((error as ApiError).code).toBe("validation_error");
    return (error as ApiError).message;
  }
  throw new Error(`${text} was accepted`);
};

describe("accepted references", () => {
  for (const [text, host, repository, tag, digest] of [
    ["r.example/busybox", "r.example", "busybox", "latest", undefined],
    ["docker://r.example/a/b/c:1.36", "r.example", "a/b/c", "1.36", undefined],
    ["R.Example:5000/team/app_x__y-z--w:V1", "r.example:5000", "team/app_x__y-z--w", "V1", undefined],
    [`r.example/app@${DIGEST}`, "r.example", "app", undefined, DIGEST],
    [`r.example/app:1@${DIGEST}`, "r.example", "app", "1", DIGEST],
    ["localhost/app", "localhost", "app", "latest", undefined],
    ["localhost:5000/app", "localhost:5000", "app", "latest", undefined],
    ["127.0.0.1:5000/app", "127.0.0.1:5000", "app", "latest", undefined],
    ["nas:5000/app", "nas:5000", "app", "latest", undefined],
    ["oci:5000/app", "oci:5000", "app", "latest", undefined],
    ["[2001:DB8:0::1]:5000/app:2", "[2001:db8::1]:5000", "app", "2", undefined],
    ["[::1]/app", "[::1]", "app", "latest", undefined],
  ] as const) {
    test(text, () => {
      const parsed = parseRegistryReference(text);
      expect([parsed.host, parsed.repository, parsed.tag, parsed.digest]).toEqual([host, repository, tag, digest]);
      expect(parseRegistryReference(parsed.canonical)).toEqual(parsed);
    });
  }
});

test("a reference without a host is refused with its full spelling, or goes to the default registry", () => {
  for (const text of ["busybox", "busybox:1.36", "team/app", `busybox@${DIGEST}`, "team.x", "a/b.c:1"]) {
    expect(refusal(text)).toContain(`write <registry-host>/${text} `);
    expect(parseRegistryReference(text, { defaultRegistry: "r.example:5000" }).canonical).toStartWith(
      "r.example:5000/",
    );
  }
  expect(parseRegistryReference("r.example/x", { defaultRegistry: "other.example" }).host).toBe("r.example");
  // Image tools read such a host as a part of the repository, and connect to another host.
  expect(refusal("app", "nas")).toContain("needs a port");
});

test("accepts only registries as sources", () => {
  for (const text of [
    "oci:/etc",
    "oci:image:tag",
    "dir:/etc",
    "DIR:/etc",
    "docker-daemon:app:1",
    "docker-archive:/tmp/x.tar",
    "containers-storage:app",
    "file:///etc/passwd",
    "file:/etc/passwd",
    "http://r.example/app",
    "https://r.example/app",
    "docker:app",
    "docker://docker://r.example/app",
    "docker://oci:/etc",
    "DOCKER://r.example/app",
  ]) {
    expect(refusal(text)).toContain("container registries only");
  }
});

test("refuses credentials in a reference, and does not repeat them", () => {
  for (const text of [
    "user:hunter2@r.example/app",
    "user@r.example:5000/app:1",
    "docker://user:hunter2@r.example/app",
    "user:hunter2@r.example",
    "user:hunter2@localhost/app",
  ]) {
    const message = refusal(text);
    expect(message).toContain("give them in credentials");
    expect(message).not.toContain("hunter2");
  }
});

test("refuses malformed references", () => {
  for (const text of [
    "",
    " r.example/app",
    "r.example/app\n",
    "r.example/äpp",
    "r.example/",
    "r.example//app",
    "r.example/App",
    "r.example/app:",
    "r.example/app:-x",
    `r.example/app:${"x".repeat(129)}`,
    "r.example/app@",
    "r.example/app@sha256:abc",
    `r.example/app@sha512:${"0".repeat(128)}`,
    `r.example/app@${DIGEST}@${DIGEST}`,
    "r.example/../app",
    "r.example:0/app",
    "r.example:65536/app",
    "r.example:5000:1/app",
    "-r.example/app",
    "r..example/app",
    ".r/app",
    "[::1/app",
    "[]/app",
    "[::g]/app",
    "[::1%25eth0]/app",
    "[127.0.0.1]/app",
    "::1/app",
    "--help.x/app",
    `r.example/${"a".repeat(250)}`,
    `r.example/${"a".repeat(2000)}`,
  ]) {
    refusal(text);
  }
});

const component = fc.stringMatching(/^[a-z0-9]{1,8}([._-][a-z0-9]{1,4}){0,2}$/);
const hostName = fc.oneof(
  fc.stringMatching(/^[a-z0-9]{1,8}(\.[a-z0-9]{1,8}){1,3}(:[1-9][0-9]{0,3})?$/),
  fc.stringMatching(/^[a-z]{1,8}:[1-9][0-9]{0,3}$/).filter((name) => !name.startsWith("docker:")),
);
const version = fc.stringMatching(/^[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}$/);

test("parses every well-formed reference into its parts", () => {
  const path = fc.array(component, { minLength: 1, maxLength: 4 }).map((parts) => parts.join("/"));
  void fc.assert(
    fc.property(hostName, path, fc.option(version), fc.boolean(), (host, repository, tag, pinned) => {
      const text = `${host}/${repository}${tag === null ? "" : `:${tag}`}${pinned ? `@${DIGEST}` : ""}`;
      const parsed = parseRegistryReference(text);
      expect(parsed.host).toBe(host);
      expect(parsed.repository).toBe(repository);
      expect(parsed.tag).toBe(tag ?? (pinned ? undefined : "latest"));
      expect(parsed.digest).toBe(pinned ? DIGEST : undefined);
      expect(parseRegistryReference(parsed.canonical)).toEqual(parsed);
    }),
  );
});

test("any text is refused with an ApiError, or names a host that image tools recognise as one", () => {
  const noise = fc.string({
    unit: fc.constantFrom(..."aB0.:/@[]-_ \n%éoci:dir:docker://sha256:".split("")),
    maxLength: 60,
  });
  void fc.assert(
    fc.property(fc.oneof(noise, fc.string({ unit: "binary" })), (text) => {
      try {
        const parsed = parseRegistryReference(text);
        expect(parsed.host === "localhost" || /[.:]/.test(parsed.host)).toBe(true);
        expect(parsed.canonical).toMatch(/^[a-z0-9[][a-z0-9.:[\]-]*\/[a-z0-9._/-]+(:[\w.-]+)?(@sha256:[0-9a-f]{64})?$/);
        expect(parseRegistryReference(parsed.canonical)).toEqual(parsed);
      } catch (error) {
        expect(error).toBeInstanceOf(ApiError);
      }
    }),
    { numRuns: 2000 },
  );
});
