import { type Static, Type } from "@sinclair/typebox";
import { orNull, Uuid } from "./common.ts";

const permission = (scopes: string) => Type.Boolean({ description: `the token allows ${scopes}` });

/** The permissions and limits of a token. */
export const WhoAmI = Type.Object({
  token_uuid: Uuid,
  token_expiration: orNull(Type.Integer(), { description: "end of the token, in seconds since the epoch" }),
  permissions: Type.Object({
    list: permission("images:read and operations:read"),
    import: permission("images:import"),
    spawn: permission("instances:spawn"),
    spawn_disposable: permission("instances:spawn"),
    cancel: permission("operations:cancel"),
    set_image_tag: permission("images:tag"),
  }),
  limits: Type.Object({
    instance_max_timeout: Type.Integer({ description: "longest time limit of an instance, in seconds" }),
    instance_max_concurrency: Type.Integer({ description: "instances that can run at once" }),
    images_import_max_concurrency: Type.Integer({ description: "imports that can run at once" }),
    images_import_max_timeout: Type.Integer({ description: "longest time limit of an import, in seconds" }),
  }),
  operations_stat: Type.Object({}, { description: "empty: nothing is counted" }),
});
export type WhoAmI = Static<typeof WhoAmI>;
