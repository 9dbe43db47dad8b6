import { type Sample, SPAWN } from "./samples.ts";

const SHA256 = "0".repeat(64);
const ROOT = "/contree/v1";

const OPERATION = `${ROOT}/operations/{uuid}`;
const PROCESSES = `${OPERATION}/subprocesses`;

/**
 * Every route of the API for the ConTree clients with a valid request, from which a test makes invalid ones.
 * @param _own objects of the account by kind, once they exist
 */
export const contreeSamples = (_own: Readonly<Record<string, string>>): readonly Sample[] => [
  { method: "POST", path: `${ROOT}/instances`, scope: "instances:spawn", json: SPAWN },
  { method: "GET", path: `${ROOT}/operations`, scope: "operations:read" },
  { method: "GET", path: OPERATION, scope: "operations:read", object: "operation" },
  { method: "GET", path: `${OPERATION}/events`, scope: "operations:read", object: "operation" },
  { method: "POST", path: PROCESSES, scope: "instances:exec", json: { command: "true" }, object: "instance" },
  { method: "GET", path: `${PROCESSES}/1`, scope: "operations:read", object: "instance" },
  { method: "DELETE", path: `${PROCESSES}/1`, scope: "instances:exec", object: "instance" },
  {
    ...{ method: "POST", path: `${PROCESSES}/1/stdin`, scope: "instances:exec", object: "instance" },
    json: { value: "x" },
  },
  { method: "DELETE", path: OPERATION, scope: "operations:cancel", object: "operation" },
  { method: "GET", path: `${ROOT}/whoami`, scope: null },
  { method: "GET", path: `${ROOT}/images`, scope: "images:read" },
  {
    ...{ method: "POST", path: `${ROOT}/images/import`, scope: "images:import" },
    json: { registry: { url: "docker://registry.example.net/a:1" } },
  },
  { method: "PATCH", path: `${ROOT}/images/{uuid}/tag`, scope: "images:tag", json: { tag: "t" }, object: "image" },
  { method: "DELETE", path: `${ROOT}/images/{uuid}/tag`, scope: "images:tag", object: "image" },
  { method: "POST", path: `${ROOT}/files`, scope: "files:write", body: "bytes" },
  { method: "GET", path: `${ROOT}/files`, scope: "files:read" },
  { method: "GET", path: `${ROOT}/files?uuid={uuid}`, scope: "files:read", object: "file" },
  { method: "HEAD", path: `${ROOT}/files?uuid={uuid}`, scope: "files:read", object: "file" },
  {
    ...{ method: "GET", path: `${ROOT}/files/${SHA256}`, scope: "files:read" },
    route: `${ROOT}/files/{uuid}`,
  },
  { method: "GET", path: `${ROOT}/inspect/{uuid}/`, scope: "images:read", object: "image" },
  { method: "GET", path: `${ROOT}/inspect/{uuid}`, scope: "images:read", object: "image" },
  { method: "GET", path: `${ROOT}/inspect/?tag=matrix`, scope: "images:read" },
  { method: "GET", path: `${ROOT}/inspect?tag=matrix`, scope: "images:read" },
  { method: "GET", path: `${ROOT}/inspect/{uuid}/list?path=/`, scope: "images:read", object: "image" },
  { method: "GET", path: `${ROOT}/inspect/{uuid}/download?path=/f`, scope: "images:read", object: "image" },
  { method: "GET", path: `${ROOT}/inspect/{uuid}/archive?path=/`, scope: "images:read", object: "image" },
  { method: "GET", path: `${ROOT}/inspect/{uuid}/grep?pattern=x`, scope: "images:read", object: "image" },
];
