import { type Static, Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { isoTime } from "../../../domain/ids.ts";
import { PORT_MAX } from "../../../domain/ingress.ts";
import { LINK_TTL_SECONDS_DEFAULT, LINK_TTL_SECONDS_MAX } from "../../../service/ingress.ts";
import { about, checked, jsonSpec } from "../../route.ts";
import { Timestamp } from "../schema/common.ts";
import type { Surface } from "../surface.ts";

const LinkRequest = Type.Object({
  port: Type.Integer({
    minimum: 1,
    maximum: PORT_MAX,
    description: "TCP port in the sandbox",
    examples: [8080],
    error: `port must be an integer from 1 to ${PORT_MAX}`,
  }),
  ttl: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: LINK_TTL_SECONDS_MAX,
      default: LINK_TTL_SECONDS_DEFAULT,
      description: "how long the link can be used, in seconds; it ends with the token of the request at the latest",
      error: `ttl must be an integer from 1 to ${LINK_TTL_SECONDS_MAX}`,
    }),
  ),
});

/** A link to a port of a sandbox. */
const Link = Type.Object({
  url: Type.String({ format: "uri", description: "sets a cookie for its host, and leads to the port" }),
  expires_at: Timestamp,
});

/** The wire form of a link. */
type Link = Static<typeof Link>;

const LINK = {
  body: checked(LinkRequest),
  ...about({
    id: "linkSandboxPort",
    tag: "Sandboxes",
    summary: "Make a link by which a browser without a token reaches a port of a sandbox",
    responses: { 201: jsonSpec("the link", Link) },
    errors: ["not_found"],
  }),
};

export function linkRoutes(surface: Surface) {
  const { ingress, sandboxes } = surface.service;
  return new Elysia({ prefix: "/sandboxes/:sandbox" }).use(surface.access).post(
    "/links",
    async ({ principal, params, body: { port, ttl }, status }): Promise<Link> => {
      const request = { port, ttlSeconds: ttl };
      const { url, expiresAt } = await ingress.link(principal, sandboxes.find(principal, params.sandbox), request);
      return status(201, { url, expires_at: isoTime(expiresAt) }) as never;
    },
    { takes: { scope: "instances:exec" }, ...LINK },
  );
}
