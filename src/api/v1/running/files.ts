import { Elysia } from "elysia";
import type { GuestEntry as StoredEntry } from "../../../domain/tree/guest-file.ts";
import { type GuestPath, parseGuestPathText } from "../../../domain/tree/guest-path.ts";
import type { Principal } from "../../../service/parts.ts";
import type { FileRequest } from "../../../service/running/files.ts";
import { bodyStream } from "../../body/body.ts";
import { fileResponses } from "../../content/download.ts";
import { guestFileHead, guestFileReply, requestedPart } from "../../content/guest-file.ts";
import { empty, json, respond } from "../../reply.ts";
import { about, checked, jsonSpec } from "../../route.ts";
import {
  ChangedEntry,
  ChangeRequest,
  DirectoryRequest,
  FileQuery,
  GuestEntry,
  JoinRequest,
  MadeDirectory,
  MoveRequest,
  RemoveQuery,
  StatQuery,
  WriteQuery,
} from "../schema/guest-files.ts";
import type { Surface } from "../surface.ts";
import { attributesIn, entryOf, pathIn, propertiesIn, requestIn } from "./file-wire.ts";
import type { Runner } from "./runner.ts";

const READS = "instances:read";
const WRITES = "instances:exec";
const RESPONSES = fileResponses("weak entity tag, of the inode, the size and the modification time", {
  "X-Mode": "permission bits as four octal digits",
});
const ERRORS = ["not_found", "invalid_path", "conflict", "too_many_requests", "unavailable"] as const;

const READ = ({ id, one }: Runner<string>) => ({
  query: checked(FileQuery),
  ...about({
    id: id("readGuestFile"),
    tag: "Guest files",
    summary: `Read a file of ${one}, or one range of it, as it is now`,
    responses: RESPONSES,
    errors: [...ERRORS, "range_not_satisfiable"],
  }),
});

const HEAD = ({ id, one }: Runner<string>) => ({
  query: checked(FileQuery),
  ...about({
    id: id("headGuestFile"),
    tag: "Guest files",
    summary: `Read the size and times of a file of ${one}`,
    responses: { 200: { description: "the file exists", headers: RESPONSES[200].headers } },
    errors: ERRORS,
  }),
});

const WRITE = ({ id, one }: Runner<string>) => ({
  query: checked(WriteQuery),
  ...about({
    id: id("writeGuestFile"),
    tag: "Guest files",
    summary: `Write a file of ${one}, as fast as the guest takes the body; an existing file stays the same file, unless atomic`,
    requestHeaders: {
      "If-None-Match": "*: the file must not exist",
      "X-Attributes": 'a JSON object of extended attributes to set, such as {"user.origin": "upload"}',
    },
    responses: { 200: jsonSpec("the file is written", ChangedEntry) },
    errors: [...ERRORS, "insufficient_storage"],
  }),
});

const REMOVE = ({ id, one }: Runner<string>) => ({
  query: checked(RemoveQuery),
  ...about({
    id: id("removeGuestFile"),
    tag: "Guest files",
    summary: `Remove a file or a directory of ${one}`,
    responses: { 204: { description: "it is removed" } },
    errors: ERRORS,
  }),
});

const STAT = ({ id, one }: Runner<string>) => ({
  query: checked(StatQuery),
  ...about({
    id: id("statGuestFile"),
    tag: "Guest files",
    summary: `Describe a file or a directory of ${one}`,
    responses: { 200: jsonSpec("the entry", GuestEntry) },
    errors: ERRORS,
  }),
});

const CHANGE = ({ id, one }: Runner<string>) => ({
  body: checked(ChangeRequest),
  ...about({
    id: id("changeGuestFile"),
    tag: "Guest files",
    summary: `Set mode, owner or attributes of a file of ${one}`,
    responses: { 200: jsonSpec("the entry afterwards", GuestEntry) },
    errors: ERRORS,
  }),
});

const MOVE = ({ id, one }: Runner<string>) => ({
  body: checked(MoveRequest),
  ...about({
    id: id("moveGuestFile"),
    tag: "Guest files",
    summary: `Rename a file or a directory of ${one}`,
    responses: { 200: jsonSpec("the entry at its new path", ChangedEntry) },
    errors: ERRORS,
  }),
});

const MAKE = ({ id, one }: Runner<string>) => ({
  body: checked(DirectoryRequest),
  ...about({
    id: id("makeGuestDirectory"),
    tag: "Guest files",
    summary: `Make a directory of ${one}`,
    responses: { 201: jsonSpec("the directory exists", MadeDirectory) },
    errors: ERRORS,
  }),
});

const JOIN = ({ id, one }: Runner<string>) => ({
  body: checked(JoinRequest),
  ...about({
    id: id("joinGuestFiles"),
    tag: "Guest files",
    summary: `Make a file of ${one} of the contents of others, which stay; it appears when it is complete`,
    responses: { 200: jsonSpec("the file is written", ChangedEntry) },
    errors: [...ERRORS, "insufficient_storage"],
  }),
});

/** The files of what runs, one by one. */
export function fileRoutes<const Prefix extends string>(surface: Surface, runner: Runner<Prefix>) {
  const { guestFiles } = surface.service;
  const prefix = `${runner.prefix}/files` as const;
  return new Elysia({ prefix })
    .use(surface.access)
    .get(
      "",
      async ({ request, principal, params, query }) => {
        const at = requestIn(runner, { request, principal, params, query });
        const { headers: asked } = request;
        // The weak tag of a file that may change cannot be compared with that of If-Range, so all of it is sent.
        const range = asked.has("if-range") ? null : asked.get("range");
        const part =
          range === null ? null : requestedPart(range, await guestFiles.stat(principal, { ...at, follow: true }));
        const file = await guestFiles.read(principal, { ...at, ...part });
        return respond(await guestFileReply(file, at.path, { asked, part }), request);
      },
      { reads: READS, ...READ(runner) },
    )
    .head(
      "",
      async ({ request, principal, params, query }) => {
        const at = requestIn(runner, { request, principal, params, query });
        const entry = await guestFiles.stat(principal, { ...at, follow: true });
        return respond(guestFileHead(entry, at.path, request.headers), request);
      },
      { reads: READS, ...HEAD(runner) },
    )
    .put(
      "",
      async ({ request, principal, params, query }) => {
        const { parents = true, atomic = false, append = false, ...fields } = query;
        const attributes = attributesIn(request.headers.get("x-attributes"));
        const write = {
          ...requestIn(runner, { request, principal, params, query }),
          ...propertiesIn({ ...fields, attributes }),
          ...{ parents, atomic, append, exclusive: request.headers.get("if-none-match") === "*" },
          content: bodyStream(request),
        };
        return { entry: entryOf(await guestFiles.write(principal, write), write.path) };
      },
      { streams: WRITES, ...WRITE(runner) },
    )
    .delete(
      "",
      async ({ request, server, principal, params, query }) => {
        // A large tree takes longer than a connection may be silent.
        server?.timeout(request, 0);
        const { recursive = false } = query;
        await guestFiles.remove(principal, { ...requestIn(runner, { request, principal, params, query }), recursive });
        return respond(empty(204), request);
      },
      { writes: WRITES, ...REMOVE(runner) },
    )
    .get(
      "/stat",
      async ({ request, principal, params, query }) => {
        const { follow = true } = query;
        const at = requestIn(runner, { request, principal, params, query });
        return entryOf(await guestFiles.stat(principal, { ...at, follow }), at.path);
      },
      { reads: READS, ...STAT(runner) },
    )
    .use(changeRoutes(surface, runner));
}

/** The routes whose paths are in a body. */
function changeRoutes<const Prefix extends string>(surface: Surface, runner: Runner<Prefix>) {
  const { guestFiles } = surface.service;
  /** The fields of a use case, and its answer with the entry. */
  const at = (asked: { request: Request; principal: Principal; params: object }, body: object, path: GuestPath) => {
    const { user } = body as { readonly user?: string };
    return requestIn(runner, { ...asked, query: { path, user } });
  };
  const answer = (entry: StoredEntry, { path }: Pick<FileRequest, "path">) => ({ entry: entryOf(entry, path) });
  return new Elysia()
    .use(surface.access)
    .patch(
      "/attributes",
      async ({ request, principal, params, body }) => {
        const file = at({ request, principal, params }, body, pathIn(body, "path"));
        return entryOf(await guestFiles.change(principal, { ...file, ...propertiesIn(body) }), file.path);
      },
      { takes: { scope: WRITES, waitsForGuest: true }, ...CHANGE(runner) },
    )
    .post(
      "/move",
      async ({ request, server, principal, params, body }) => {
        // Between mounts, it copies.
        server?.timeout(request, 0);
        const file = at({ request, principal, params }, body, pathIn(body, "from"));
        const to = pathIn(body, "to");
        const moved = await guestFiles.move(principal, { ...file, to, replace: body.replace ?? false });
        return answer(moved, { path: to });
      },
      { takes: { scope: WRITES, waitsForGuest: true }, ...MOVE(runner) },
    )
    .post(
      "/directory",
      async ({ request, principal, params, body }) => {
        const file = at({ request, principal, params }, body, pathIn(body, "path"));
        const make = { ...file, ...propertiesIn(body), parents: body.parents ?? true };
        const { entry, created } = await guestFiles.makeDirectory(principal, make);
        return respond(json(201, { ...answer(entry, file), created }), request) as never;
      },
      { takes: { scope: WRITES, waitsForGuest: true }, ...MAKE(runner) },
    )
    .post(
      "/join",
      async ({ request, server, principal, params, body }) => {
        server?.timeout(request, 0);
        const file = at({ request, principal, params }, body, pathIn(body, "to"));
        const from = body.from.map(parseGuestPathText);
        return answer(await guestFiles.join(principal, { ...file, ...propertiesIn(body), from }), file);
      },
      { takes: { scope: WRITES, waitsForGuest: true }, ...JOIN(runner) },
    );
}
