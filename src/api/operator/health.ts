import { Type } from "@sinclair/typebox";
import { Elysia, status } from "elysia";
import type { StatusUseCases } from "../../service/status.ts";
import { respond } from "../reply.ts";
import { about, jsonSpec } from "../route.ts";

const Health = Type.Object({ status: Type.String(), version: Type.String() });

const ReadinessSchema = Type.Object({
  ready: Type.Boolean(),
  isolation: Type.Union([Type.Literal("vm"), Type.Literal("vm-emulated"), Type.Null()], {
    description: "how sandboxes are isolated from the host; null until the service has found out",
  }),
  reason: Type.String({ description: "why the service is not ready; empty when it is" }),
  checks: Type.Array(
    Type.Object({ name: Type.String(), ok: Type.Boolean(), reason: Type.String({ description: "empty when ok" }) }),
    { description: "acceleration, template, disk, database and registry_tools" },
  ),
});

/** Content type of the Prometheus text format. */
const METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8";

const HEALTH = about({
  id: "health",
  tag: "Service",
  summary: "Check whether the service answers",
  responses: { 200: jsonSpec("the service answers", Health) },
});

const READINESS = about({
  id: "readiness",
  tag: "Service",
  summary: "Check whether instances can run",
  responses: {
    200: jsonSpec("instances can run", ReadinessSchema),
    503: jsonSpec("instances cannot run, or it is not known yet whether they can", ReadinessSchema),
  },
});

const METRICS = about({
  id: "metrics",
  tag: "Service",
  summary: "Read the metrics of the service in the text format of Prometheus",
  responses: { 200: { description: "metrics", content: { "text/plain": Type.String() } } },
});

/** Routes for load balancers, supervisors and Prometheus; they need no token. */
export function statusPlugin(service: StatusUseCases) {
  return new Elysia()
    .get("/healthz", () => ({ status: "ok", version: service.version }), HEALTH)
    .get(
      "/readyz",
      () => {
        const { ready, isolation, reason, checks } = service.readiness();
        const state = { ready, isolation, reason, checks: [...checks] };
        return ready ? status(200, state) : status(503, state);
      },
      READINESS,
    )
    .get(
      "/metrics",
      async ({ request }) => {
        const headers = { "content-type": METRICS_TYPE, "cache-control": "no-store" };
        return respond({ status: 200, headers, body: await service.metrics() }, request);
      },
      METRICS,
    );
}
