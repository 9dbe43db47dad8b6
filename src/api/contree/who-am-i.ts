import { Elysia } from "elysia";
import { allows, type Scope } from "../../domain/scope.ts";
import type { Caller } from "../../service/callers.ts";
import { ANY_TOKEN, about, jsonSpec } from "../route.ts";
import { WhoAmI } from "./schema/who-am-i.ts";
import type { ContreeSurface } from "./surface.ts";

const WHO_AM_I = {
  ...about({
    id: "contreeWhoAmI",
    tag: "ConTree",
    summary: "Read what the token allows, and the limits of its account",
    responses: { 200: jsonSpec("the token", WhoAmI) },
  }),
};

export function whoAmIRoutes({ service, access }: ContreeSurface) {
  return new Elysia()
    .use(access)
    .get("/whoami", ({ principal }) => whoAmI(service.callers.describe(principal), principal.grants), {
      reads: ANY_TOKEN,
      ...WHO_AM_I,
    });
}

function whoAmI({ tokenId, expiresAt, limits }: Caller, grants: ReadonlySet<string>): WhoAmI {
  const may = (...scopes: readonly Scope[]): boolean => scopes.every((scope) => allows(grants, scope));
  return {
    token_uuid: tokenId,
    token_expiration: Math.floor(expiresAt / 1000),
    permissions: {
      list: may("images:read", "operations:read"),
      import: may("images:import"),
      spawn: may("instances:spawn"),
      spawn_disposable: may("instances:spawn"),
      cancel: may("operations:cancel"),
      set_image_tag: may("images:tag"),
    },
    limits: {
      instance_max_timeout: limits.instanceTimeoutSecondsMax,
      instance_max_concurrency: limits.instanceCountMax,
      images_import_max_concurrency: limits.importCountMax,
      images_import_max_timeout: limits.importTimeoutSecondsMax,
    },
    operations_stat: {},
  };
}
