/** A section of the interface's specification. Each row is a stable id and what the specification says, in short. */
export interface SpecificationSection {
  readonly title: string;
  readonly rows: Readonly<Record<string, string>>;
}

/** The specification of the interface, row by row. A test names the rows that it covers by `// spec: ID, ID`. */
export const SPECIFICATION: readonly SpecificationSection[] = [
  {
    title: "What the service does",
    rows: {
      "service.isolation": "sandboxes are isolated at the level of virtual machines",
      "service.branch": "state is forked from a checkpoint, explored in parallel, and rolled back",
      "service.import": "an OCI image's file system is imported from a registry, with a tag if wanted",
      "service.spawn": "a command runs in a sandbox made from an image",
      "service.operations": "long work is an operation that is polled and can be cancelled",
      "service.inspect": "an image's content can be read without running it",
      "service.figures": "every execution reports CPU time, memory, exit code and whether it timed out",
      "service.file-system-only": "OCI metadata (ENV, ENTRYPOINT, CMD) is not kept",
      "service.json": "bodies are JSON, but for uploads and downloads",
    },
  },
  {
    title: "Resources and their fields",
    rows: {
      "image.fields": "Image: uuid, tag (absent when removed), created_at",
      "file.fields": "File: uuid, sha256 in lowercase hexadecimal",
      "instance.fields": "Instance: uuid",
      "operation.fields": "Operation: id, status, kind, created_at, result",
      "result.exit_code": "exit_code: exit code of the command",
      "result.outputs": "stdout, stderr: output objects",
      "result.cpu_time_ms": "cpu_time_ms: CPU time in milliseconds",
      "result.memory_bytes": "memory_bytes: memory in bytes",
      "result.timed_out": "timed_out: true when the time limit was reached",
      "output.content": "content: the captured text",
      "output.encoding": "encoding: ascii for plain text",
      "output.truncated": "truncated: true when cut at the limit",
      "listing.fields": "directory listing: path, items",
      "item.fields": "item: name, size, mode (four octal digits), is_regular, modified_at",
      "metadata.fields": "image metadata: uuid, tag, created_at",
    },
  },
  {
    title: "States and transitions",
    rows: {
      "states.values": "PENDING, EXECUTING, SUCCESS, FAILED, CANCELLED",
      "states.conflict": "409 for a conflict with the state of an operation",
      "states.retry-after": "reading an operation can return Retry-After, the polling interval",
    },
  },
  {
    title: "GET /images",
    rows: {
      "images.list": "200, an array of Image objects",
      "images.list.limit": "limit: 1 to 1000, default 100",
      "images.list.offset": "offset: default 0",
      "images.list.tagged": "tagged: only tagged images",
      "images.list.tag": "tag: filter by a prefix of the tag",
      "images.list.since": "since: lower bound of the time of creation, a timestamp or such as 15m, 2h, 3d",
      "images.list.until": "until: upper bound, in the same forms",
    },
  },
  {
    title: "POST /images/import",
    rows: {
      "images.import": "202 with the Location of an operation of kind image_import",
      "images.import.registry": "registry: required, REGISTRY/REPOSITORY:VERSION",
      "images.import.credentials": "credentials: username and password, optional",
      "images.import.tag": "tag: assigned to the imported image, optional",
      "images.import.timeout": "timeout: of the import, optional",
    },
  },
  {
    title: "PATCH and DELETE /images/{imageUUID}/tag",
    rows: {
      "images.tag.set": "PATCH with tag: 200, the updated Image",
      "images.tag.move": "a tag is unique per account; setting one that exists moves it",
      "images.tag.remove": "DELETE: 200, the Image without the tag",
    },
  },
  {
    title: "Files",
    rows: {
      "files.upload": "POST /files, application/octet-stream, raw bytes: 201 with uuid and sha256",
      "files.head": "HEAD /files?uuid=: 200 when the file exists, otherwise 404",
      "files.lookup": "GET /files?sha256=: 200, a FileResponse",
    },
  },
  {
    title: "POST /instances",
    rows: {
      "instances.spawn": "201 with Location and the body {uuid}",
      "instances.image": "image: required, a UUID or tag:NAME",
      "instances.command": "command: required, an executable path or a shell expression",
      "instances.shell": "shell: default false; runs the command through a shell",
      "instances.env": "env: environment variables",
      "instances.cwd": "cwd: working directory, default /root",
      "instances.timeout": "timeout: most seconds of execution",
      "instances.files": "files: from a path in the sandbox to an uploaded file, with a mode of four octal digits",
      "instances.truncate_output_at": "truncate_output_at: default 1 MiB, at most 10 MiB",
      "instances.stdin": "stdin: plain ASCII, or base64 after the prefix base64:",
      "instances.hostname": "hostname: host name of the sandbox",
      "instances.disposable": "disposable: cleaned up after the execution",
    },
  },
  {
    title: "Operations",
    rows: {
      "operations.list": "GET /operations: 200, an array of Operation objects",
      "operations.list.limit": "limit: 1 to 1000, default 100",
      "operations.list.offset": "offset: default 0",
      "operations.list.status": "status: one of the five states",
      "operations.list.kind": "kind: image_import or instance",
      "operations.list.since": "since: lower bound of time, absolute or relative",
      "operations.list.until": "until: upper bound of time",
      "operations.get": "GET /operations/{operationId}: 200, the Operation",
      "operations.cancel": "DELETE /operations/{operationId}: 202",
    },
  },
  {
    title: "Inspection",
    rows: {
      "inspect.tag": "GET /inspect/?tag=: 302 to /inspect/{imageUUID}/",
      "inspect.metadata": "GET /inspect/{imageUUID}/: 200, the metadata",
      "inspect.list": "GET /inspect/{imageUUID}/list?path=: 200, the directory listing",
      "inspect.list.text": "list with text=true: plain text in the style of ls",
      "inspect.download": "GET /inspect/{imageUUID}/download?path=: 200, the content with its Content-Type",
      "inspect.download.text": "download with text=true: text/plain",
      "inspect.exists": "HEAD /inspect/{imageUUID}/?path=: 200 when the path exists, otherwise 404",
    },
  },
  {
    title: "Authentication",
    rows: {
      "auth.bearer": "every endpoint takes a bearer JWT in Authorization",
      "auth.401": "a missing or invalid token: 401",
      "auth.403": "a token without sufficient permissions: 403",
    },
  },
  {
    title: "Events",
    rows: { "events.polling": "the end of work is observed by polling; Retry-After suggests the interval" },
  },
  {
    title: "Errors",
    rows: {
      "errors.shape": "an error body has error, message and details",
      "errors.validation_error": "validation_error for an invalid value, such as a malformed UUID",
      "errors.400": "400: invalid parameters",
      "errors.404": "404: the resource does not exist; also of the HEAD checks",
      "errors.409": "409: conflict with the state of an operation",
      "errors.422": "422: invalid path",
    },
  },
  {
    title: "Versioning",
    rows: { "version.base": "the version is part of the base address, which ends with /v1" },
  },
];
