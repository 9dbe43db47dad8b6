import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { JOINED_FILES_COUNT_MAX } from "../../../domain/tree/guest-file.ts";
import { empty, json, respond } from "../../reply.ts";
import { checked } from "../../route.ts";
import { envdOf } from "../envd-access.ts";
import type { E2bParts } from "../options.ts";
import { serverStream, unary } from "../rpc/connect.ts";
import { downloadFile } from "./download.ts";
import { latestFigures } from "./figures.ts";
import { filesystemMethods } from "./filesystem.ts";
import { placeOf, queryOf } from "./place.ts";
import { composeFile, uploadFiles } from "./upload.ts";

const FILESYSTEM = "/filesystem.Filesystem";
const READS = "instances:read";
const WRITES = "instances:exec";

const ComposeBody = Type.Object({
  source_paths: Type.Optional(
    Type.Union([Type.Array(Type.String(), { maxItems: JOINED_FILES_COUNT_MAX }), Type.Null()]),
  ),
  destination: Type.Optional(Type.Union([Type.String(), Type.Null()])),
  username: Type.Optional(Type.Union([Type.String(), Type.Null()])),
});

/** The agent's service filesystem.Filesystem, and its files by HTTP. */
export function filesPlugin(parts: E2bParts): Elysia {
  const { requests, access, calls } = parts;
  const placeIn = (request: Request) => placeOf(parts, request, queryOf(request).get("username"));
  const app = new Elysia()
    .use(access)
    .get("/health", ({ request }) => {
      // Without a sandbox, it is the health of the listener.
      if (requests.of(request).principal !== null) envdOf(request);
      return respond(empty(204), request);
    })
    .get(
      "/files",
      async ({ request }) => respond(await downloadFile(parts, request, await placeIn(request)), request),
      {
        reads: READS,
      },
    )
    .post(
      "/files",
      async ({ request }) => respond(json(200, await uploadFiles(parts, request, await placeIn(request))), request),
      { streams: WRITES },
    )
    .post(
      "/files/compose",
      async ({ request, body }) => {
        const place = await placeOf(parts, request, body.username ?? null);
        return respond(json(200, await composeFile(parts, place, body)), request);
      },
      { takes: { scope: WRITES, waitsForGuest: true }, body: checked(ComposeBody) },
    )
    .get("/metrics", ({ request }) => respond(json(200, latestFigures(parts, envdOf(request))), request), {
      reads: READS,
    })
    .get("/envs", ({ request }) => respond(json(200, envdOf(request).sandbox.env), request), { reads: READS });
  const { unary: methods, watchDir } = filesystemMethods(parts);
  for (const [name, method] of Object.entries(methods)) {
    app.post(`${FILESYSTEM}/${name}`, unary(method), { takes: { scope: WRITES, waitsForGuest: true } });
  }
  app.post(`${FILESYSTEM}/WatchDir`, serverStream(watchDir, { calls, keepalive: { keepalive: {} } }), { reads: READS });
  return app as unknown as Elysia;
}
