import { Elysia } from "elysia";
import { SHA256_PATTERN } from "../../../domain/file.ts";
import { given } from "../../../domain/given.ts";
import { authorize } from "../../auth.ts";
import { announcedLength, bodyStream } from "../../body/body.ts";
import { empty, json, respond } from "../../reply.ts";
import { checked } from "../../route.ts";
import { E2bError } from "../errors.ts";
import type { E2bParts } from "../options.ts";
import { originOf, UPLOAD_PREFIX } from "../principal.ts";
import { BuildStart, LogsQuery, NewBuild, StatusQuery } from "./schema.ts";
import { buildInput } from "./steps.ts";
import { atLeast, ENTRIES_COUNT_MAX, entryOf, statusOf } from "./wire.ts";

const hashExpression = new RegExp(SHA256_PATTERN);
const MIB_BYTES = 1_048_576;
/** Longest request for a build, in `bytes`. */
const BUILD_BODY_BYTES_MAX = 8_388_608;

/** Requests for builds, their files, their steps, and what became of them. */
export function buildRoutes(parts: E2bParts) {
  const { access, service, settings, clock } = parts;
  const { templates } = service;
  return new Elysia()
    .use(access)
    .post(
      "/v3/templates",
      ({ request, principal, body }) => {
        authorize(principal, "images:tag");
        const { template, build } = templates.request(principal, requestOf(body));
        const { id: templateID, name, public: isPublic } = template;
        const answer = { templateID, buildID: build.id, public: isPublic, tags: build.tags };
        return respond(json(202, { ...answer, names: [name], aliases: [name] }), request) as never;
      },
      { takes: { scope: "instances:spawn" }, body: checked(NewBuild) },
    )
    .get(
      "/templates/:templateID/files/:hash",
      async ({ request, principal, params: { templateID, hash } }) => {
        templates.get(principal, templateID);
        if (!hashExpression.test(hash)) throw new E2bError(400, "hash must be a SHA-256 in hexadecimal");
        const secret = await service.e2b.uploads.secret(principal, hash);
        const url = `${originOf(request)}${UPLOAD_PREFIX}${hash}?secret=${encodeURIComponent(secret)}`;
        return respond(json(201, { present: templates.hasFiles(principal, hash), url }), request) as never;
      },
      { reads: "files:write" },
    )
    .put(
      `${UPLOAD_PREFIX}:hash`,
      async ({ request, principal, params: { hash } }) => {
        const upload = { announcedBytes: announcedLength(request), content: bodyStream(request) };
        const { id } = await service.files.upload(principal, upload);
        templates.setFiles(principal, hash, id);
        return respond(empty(200), request) as never;
      },
      { receives: "files:write" },
    )
    .post(
      "/v2/templates/:templateID/builds/:buildID",
      ({ request, principal, params: { templateID, buildID }, body }) => {
        // Steps may import images, and the result gets a tag.
        for (const scope of ["images:import", "images:tag"] as const) authorize(principal, scope);
        const { status } = templates.build(principal, templateID, buildID);
        if (status !== "waiting") throw new E2bError(400, `the build is not waiting for its steps: it is ${status}`);
        templates.start(principal, templateID, buildID, buildInput(body, settings.defaultUser));
        return respond(empty(202), request) as never;
      },
      { takes: { scope: "instances:spawn", bytesMax: BUILD_BODY_BYTES_MAX }, body: checked(BuildStart) },
    )
    .get(
      "/templates/:templateID/builds/:buildID/status",
      ({ request, principal, params: { templateID, buildID }, query }) => {
        const build = templates.build(principal, templateID, buildID);
        const log = templates.log(principal, templateID, buildID);
        const options = { templateId: build.templateId, now: clock(), ...given(query) };
        return respond(json(200, statusOf(build, log, options)), request) as never;
      },
      { reads: "images:read", query: checked(StatusQuery) },
    )
    .get(
      "/templates/:templateID/builds/:buildID/logs",
      ({ request, principal, params: { templateID, buildID }, query }) => {
        const { cursor = 0, limit = ENTRIES_COUNT_MAX, direction, level } = query;
        const isBackward = direction === "backward";
        const all = templates.log(principal, templateID, buildID).filter(atLeast(level));
        const after = all.filter(({ at }) => cursor === 0 || (isBackward ? at <= cursor : at >= cursor));
        const logs = (isBackward ? after.reverse() : after).slice(0, Math.min(limit, ENTRIES_COUNT_MAX)).map(entryOf);
        return respond(json(200, { logs }), request) as never;
      },
      { reads: "images:read", query: checked(LogsQuery) },
    );
}

/** @throws E2bError 400 */
function requestOf({ name, alias, tags, cpuCount, memoryMB }: NewBuild) {
  const text = name || alias;
  if (!text) throw new E2bError(400, "name is required");
  return {
    name: text,
    tags: tags ?? [],
    vcpus: cpuCount ?? undefined,
    memoryBytes: memoryMB == null ? undefined : memoryMB * MIB_BYTES,
  };
}
