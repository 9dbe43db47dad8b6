import { Type } from "@sinclair/typebox";
import type { StatusUseCases } from "../../service/status.ts";
import { json } from "../reply.ts";
import { jsonSpec } from "../responses.ts";
import { type Route, route } from "../route.ts";

const Health = Type.Object({ status: Type.String(), version: Type.String() });

const ReadinessSchema = Type.Object({
  ready: Type.Boolean(),
  isolation: Type.Union([Type.Literal("vm"), Type.Literal("vm-emulated"), Type.Null()], {
    description: "how strongly sandboxes are separated from the host; null while that is not known",
  }),
  reason: Type.String({ description: "why the service is not ready; empty when it is" }),
  checks: Type.Array(
    Type.Object({ name: Type.String(), ok: Type.Boolean(), reason: Type.String({ description: "empty when ok" }) }),
    { description: "acceleration, template, disk, database and registry_tools" },
  ),
});

/** What Prometheus asks for. */
const METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8";

/** What load balancers, supervisors and Prometheus ask for; no token is needed. */
export function statusRoutes(status: StatusUseCases): Route[] {
  return [
    route({
      method: "GET",
      path: "/healthz",
      scope: null,
      id: "health",
      tag: "Service",
      summary: "Ask whether the service answers",
      responses: { 200: jsonSpec("it does", Health) },
      handle: () => json(200, { status: "ok", version: status.version }),
    }),
    route({
      method: "GET",
      path: "/readyz",
      scope: null,
      id: "readiness",
      tag: "Service",
      summary: "Ask whether instances can run",
      responses: {
        200: jsonSpec("they can", ReadinessSchema),
        503: jsonSpec("they cannot, or it is not known yet", ReadinessSchema),
      },
      handle: () => {
        const { ready, isolation, reason, checks } = status.readiness();
        return json(ready ? 200 : 503, { ready, isolation, reason, checks });
      },
    }),
    route({
      method: "GET",
      path: "/metrics",
      scope: null,
      id: "metrics",
      tag: "Service",
      summary: "Read the figures of the service in the form of Prometheus",
      responses: { 200: { description: "metrics", content: { "text/plain": Type.String() } } },
      handle: async () => ({
        status: 200,
        headers: { "content-type": METRICS_TYPE, "cache-control": "no-store" },
        body: await status.figures(),
      }),
    }),
  ];
}
