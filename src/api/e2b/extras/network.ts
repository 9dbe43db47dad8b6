import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { empty, respond } from "../../reply.ts";
import { checked } from "../../route.ts";
import { liveSandbox } from "../control/life.ts";
import { flag, Network, optional } from "../control/schema.ts";
import { networkOf } from "../network.ts";
import type { E2bParts } from "../options.ts";

const NetworkUpdate = Type.Composite([
  Type.Pick(Network, ["allowOut", "denyOut", "rules", "egressProxy"]),
  Type.Object({ allow_internet_access: optional(flag("allow_internet_access")) }),
]);

export function networkRoutes(parts: E2bParts) {
  const { access, service } = parts;
  const { sandboxes, e2b } = service;
  return new Elysia().use(access).put(
    "/sandboxes/:sandboxID/network",
    async ({ request, principal, params, body }) => {
      const { sandbox, record } = liveSandbox(parts, principal, params.sandboxID);
      const network = networkOf(body, sandboxes.networkRules(principal));
      await sandboxes.change(principal, sandbox.id, { network });
      // The request says nothing about access to the ports of the sandbox.
      const { allowPublicTraffic = true, maskRequestHost = null } = record.network ?? {};
      e2b.update(principal, sandbox.id, {
        allowInternetAccess: body.allow_internet_access ?? null,
        network: {
          ...record.network,
          ...{ allowOut: body.allowOut ?? [], denyOut: body.denyOut ?? [], allowPublicTraffic, maskRequestHost },
        },
      });
      return respond(empty(204), request) as never;
    },
    { takes: { scope: "instances:spawn", waitsForGuest: true, mayBeEmpty: true }, body: checked(NetworkUpdate) },
  );
}
