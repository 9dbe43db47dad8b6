import type { OperationId } from "../../../domain/ids.ts";
import type { Principal } from "../../../service/parts.ts";
import { idOf, type ProcessName, type Target } from "../../../service/running/running.ts";
import type { Surface } from "../surface.ts";

/** A noun that runs processes. The routes of processes, ports and statistics are the same for each. */
export interface Runner<Prefix extends string> {
  /** below the prefix of the surface, with its parameter */
  readonly prefix: Prefix;
  /** in descriptions: without and with its article */
  readonly noun: string;
  readonly one: string;
  /** The unique id of a route, which has this id for instances. */
  id(ofInstances: string): string;
  /** The target that the parameters of a path name. @throws ApiError `not_found` */
  target(principal: Principal, params: object): Target;
  /** the path of a target below the prefix of the surface */
  path(target: Target): string;
}

export const INSTANCES: Runner<"/instances/:uuid"> = {
  prefix: "/instances/:uuid",
  noun: "instance",
  one: "an instance",
  id: (name) => name,
  target: (_principal, params) => (params as { readonly uuid: OperationId }).uuid,
  path: (target) => `/instances/${idOf(target)}`,
};

export function sandboxRunner({ service }: Surface): Runner<"/sandboxes/:sandbox"> {
  return {
    prefix: "/sandboxes/:sandbox",
    noun: "sandbox",
    one: "a sandbox",
    id: (name) => (name.startsWith("instance") ? name.replace("instance", "sandbox") : `${name}InSandbox`),
    target: (principal, params) => {
      const { sandbox } = params as { readonly sandbox: string };
      return { sandbox: service.sandboxes.find(principal, sandbox) };
    },
    path: (target) => `/sandboxes/${idOf(target)}`,
  };
}

/** The process that the parameters of a path name. @throws ApiError `not_found` */
export function processOf(runner: Runner<string>, principal: Principal, params: object): ProcessName {
  return { id: runner.target(principal, params), spid: Number((params as { readonly spid: string }).spid) };
}
