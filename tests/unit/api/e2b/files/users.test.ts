/** The users of a guest, and the paths that their requests name. */
import { describe, expect, test } from "bun:test";
import { guestUser, resolvePath, type UserParts } from "../../../../../src/api/e2b/files/users.ts";
import { ApiError } from "../../../../../src/domain/errors.ts";
import type { OperationId } from "../../../../../src/domain/ids.ts";
import type { GuestUser } from "../../../../../src/domain/tree/guest-file.ts";
import { textToByteString } from "../../../../../src/domain/tree/guest-path.ts";
import type { Principal } from "../../../../../src/service/parts.ts";
import { failureOf } from "../../../../support/failures.ts";

const NEVER = new AbortController().signal;
const PLACE = { principal: {} as Principal, target: "t" as OperationId };

function user(name: string, uid: number, home = `/home/${name}`): GuestUser {
  return {
    name: textToByteString(name),
    uid,
    gid: uid,
    home: textToByteString(home),
    shell: textToByteString("/bin/sh"),
  };
}

/** A guest with these users, which answers to their names and numbers. */
function guest(...users: readonly GuestUser[]): UserParts & { readonly asked: string[] } {
  const asked: string[] = [];
  const find = async ({ user: text }: { readonly user: string }) => {
    asked.push(text);
    const entry = users.find(({ name, uid }) => name === textToByteString(text) || String(uid) === text);
    if (entry !== undefined) return entry;
    if (/^\d+$/.test(text)) return { ...user("", Number(text), "/") };
    throw new ApiError("not_found", `user ${text}: no such file or directory`, { errno: 2 });
  };
  const guestFiles = { user: (_principal: Principal, request: { readonly user: string }) => find(request) };
  return { asked, service: { guestFiles }, settings: { defaultUser: "user" } } as never;
}

const userOf = (parts: UserParts, name: string | null) => guestUser(parts, PLACE, name, NEVER);
const refusal = async (parts: UserParts, name: string) => (await failureOf(userOf(parts, name))) as ApiError;

describe("the user of a request", () => {
  test("is the default one unless it has a name, and root where the guest has no other", async () => {
    const whole = guest(user("root", 0, "/root"), user("user", 1000));
    expect((await userOf(whole, null)).uid).toBe(1000);
    expect((await userOf(whole, "root")).home as string).toBe("/root");
    expect((await userOf(guest(user("root", 0, "/root")), null)).home as string).toBe("/root");
    expect(await userOf(guest(), null)).toMatchObject({ name: "root", uid: 0, gid: 0, home: "/" } as never);
  });

  test("must be in the guest by that very name", async () => {
    const whole = guest(user("root", 0), user("user", 1000), user("ünal", 1001));
    expect((await userOf(whole, "ünal")).uid).toBe(1001);
    for (const name of ["ghost", "1000", "7", "", "user:root", "user\0", "user\n", "x".repeat(257)]) {
      const { code, message } = await refusal(whole, name);
      expect([code as string, message]).toEqual(["unauthorized", `invalid username: '${name.slice(0, 256)}'`]);
    }
    expect(whole.asked.filter((name) => name.includes(":") || name === "")).toEqual([]);
  });

  test("is not unknown when the sandbox is", async () => {
    const parts = guest();
    const gone = new ApiError("not_found", "no such sandbox");
    const guestFiles = { user: () => Promise.reject(gone) };
    expect(await failureOf(userOf({ ...parts, service: { guestFiles } }, "ann"))).toBe(gone);
  });
});

describe("a path", () => {
  const at = (path: string, home = "/home/user") => resolvePath({ home: textToByteString(home) }, path) as string;

  test("is absolute, below the home, or relative to it", () => {
    expect(
      ["/a//b/./c/", "~", "~/", "~/x", "x/y", "./x", "", "../other", "/a/../..", "~/../x"].map((path) => at(path)),
    ).toEqual(
      [
        "/a/b/c",
        "/home/user",
        "/home/user",
        "/home/user/x",
        "/home/user/x/y",
        "/home/user/x",
        "/home/user",
        "/home/other",
      ].concat(["/", "/home/x"]),
    );
    expect(at("ü")).toBe(`/home/user/${textToByteString("ü")}`);
    expect(at("x", "/")).toBe("/x");
    expect(at("x", "/h/../../e//")).toBe("/e/x");
  });

  test.each([
    ["of another user's home", "~ann"],
    ["below another user's home", "~ann/x"],
    ["with a NUL", "a\0b"],
    ["with too long a name", "x".repeat(256)],
    ["that is too long", "x/".repeat(2100)],
  ])("%s is refused", async (_name, path) => {
    expect(((await failureOf(Promise.try(() => at(path)))) as ApiError).code).toBe("invalid_path");
  });
});
