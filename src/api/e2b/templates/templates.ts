import { Elysia } from "elysia";
import { isoTime } from "../../../domain/ids.ts";
import { empty, json, respond } from "../../reply.ts";
import { checked } from "../../route.ts";
import { E2bError } from "../errors.ts";
import type { E2bParts } from "../options.ts";
import { TagAssignment, TagRemoval, TemplateChange } from "./schema.ts";
import { detailOf, listedOf } from "./wire.ts";

const OLD = "builds from a Dockerfile by the client are not offered by this server: use a newer client";

/** Templates that there are, and their tags. */
export function templateRoutes({ access, service }: E2bParts) {
  const { templates } = service;
  const disk = { diskBytes: service.templates.diskBytes };
  const list = ({ request, principal }: { request: Request; principal: Parameters<typeof templates.list>[0] }): never =>
    respond(
      json(
        200,
        templates.list(principal).map((summary) => listedOf(summary, disk)),
      ),
      request,
    ) as never;
  const refuse = (): never => {
    throw new E2bError(400, OLD);
  };
  return new Elysia()
    .use(access)
    .get("/templates", list, { reads: "images:read" })
    .get("/v2/templates", list, { reads: "images:read" })
    .get(
      "/templates/aliases/:alias",
      ({ request, principal, params: { alias } }) => {
        const { templateId } = templates.resolve(principal, alias);
        return respond(json(200, { templateID: templateId, public: false }), request) as never;
      },
      { reads: "images:read" },
    )
    .get(
      "/templates/:templateID",
      ({ request, principal, params: { templateID } }) => {
        return respond(json(200, detailOf(templates.get(principal, templateID), disk)), request) as never;
      },
      { reads: "images:read" },
    )
    .patch(
      "/v2/templates/:templateID",
      ({ request, principal, params: { templateID }, body }) => {
        // Other accounts cannot use it: an appliance has no public templates.
        if (body.public === true) throw new E2bError(400, "public templates are not offered by this server");
        const { name } = templates.setPublic(principal, templateID, false);
        return respond(json(200, { names: [name] }), request) as never;
      },
      { takes: { scope: "images:tag" }, body: checked(TemplateChange) },
    )
    .delete(
      "/templates/:templateID",
      async ({ request, principal, params: { templateID } }) => {
        await templates.delete(principal, templateID);
        return respond(empty(204), request) as never;
      },
      { writes: "images:delete" },
    )
    .get(
      "/templates/:templateID/tags",
      ({ request, principal, params: { templateID } }) => {
        const { tags } = templates.get(principal, templateID);
        const listed = tags.map(({ tag, buildId, createdAt }) => ({
          tag,
          buildID: buildId,
          createdAt: isoTime(createdAt),
        }));
        return respond(json(200, listed), request) as never;
      },
      { reads: "images:read" },
    )
    .post(
      "/templates/tags",
      ({ request, principal, body: { target, tags } }) => {
        const { buildId, tags: names } = templates.tag(principal, target, tags);
        return respond(json(201, { buildID: buildId, tags: names }), request) as never;
      },
      { takes: { scope: "images:tag" }, body: checked(TagAssignment) },
    )
    .delete(
      "/templates/tags",
      ({ request, principal, body: { name, tags } }) => {
        templates.untag(principal, name, tags);
        return respond(empty(204), request) as never;
      },
      { takes: { scope: "images:tag" }, body: checked(TagRemoval) },
    )
    .post("/templates", refuse, { writes: "images:tag" })
    .post("/v2/templates", refuse, { writes: "images:tag" })
    .post("/templates/:templateID", refuse, { writes: "images:tag" })
    .post("/templates/:templateID/builds/:buildID", refuse, { writes: "images:tag" });
}
