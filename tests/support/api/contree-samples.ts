import type { Sample } from "./samples.ts";

const ROOT = "/contree/v1";

/**
 * Every route of the API for the ConTree clients with a valid request, which a test then breaks.
 * @param _own objects of the account by what they are, once they are made
 */
export const contreeSamples = (_own: Readonly<Record<string, string>>): readonly Sample[] => [
  { method: "GET", path: `${ROOT}/whoami`, scope: null },
  { method: "GET", path: `${ROOT}/inspect/?tag=matrix`, scope: "images:read" },
  { method: "GET", path: `${ROOT}/inspect?tag=matrix`, scope: "images:read" },
  { method: "GET", path: `${ROOT}/inspect/{uuid}/list?path=/`, scope: "images:read", object: "image" },
  { method: "GET", path: `${ROOT}/inspect/{uuid}/download?path=/f`, scope: "images:read", object: "image" },
  { method: "GET", path: `${ROOT}/inspect/{uuid}/archive?path=/`, scope: "images:read", object: "image" },
];
