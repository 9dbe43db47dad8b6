/* The public interface of the package. */

export { type BranchesOptions, readBranches, readChanges } from "./branches.ts";
export {
  answerOf,
  type CallOptions,
  Client,
  type ClientOptions,
  type SocketInit,
  type SocketOptions,
} from "./client.ts";
export { type AttachedOutput, Attachment, type AttachOptions } from "./connections/attachment.ts";
export { PortConnection } from "./connections/port.ts";
export { SteadyAttachment, type SteadyAttachOptions } from "./connections/steady-attachment.ts";
export { AnswerError, OperationError, ResponseError, UnreachableError } from "./errors.ts";
export { forkInstance, forkSandboxMemory } from "./forks.ts";
export {
  changeFile,
  type FileAt,
  joinFiles,
  listFiles,
  makeDirectory,
  moveFile,
  readFile,
  removeFile,
  statFile,
  type WriteOptions,
  watchFiles,
  writeFile,
} from "./guest-files.ts";
export { checkpoint, importImage, loadImage } from "./imports.ts";
export {
  bytesOf,
  commandStart,
  type OperationEventsOptions,
  onceStarted,
  operationEvents,
  outputOf,
} from "./operation-events.ts";
export {
  type CompleteOptions,
  cancelOperation,
  complete,
  hasEnded,
  operationProgress,
  type Progress,
  succeeded,
  type WaitOptions,
  waitForEnd,
} from "./operations.ts";
export type { Place } from "./place.ts";
export { COMMAND_SPID, type ProcessName, readProcess, signalProcess, startProcess, streamInput } from "./processes.ts";
export { instanceResult, type OutputLine, Run, type RunOptions, runCommand, textOf } from "./runs.ts";
export {
  changeSandbox,
  endSandbox,
  forkSandbox,
  linkToPort,
  listSandboxes,
  openSandbox,
  type PortLink,
  pauseSandbox,
  readSandbox,
  resumeSandbox,
  rollbackSandbox,
  type SandboxReference,
  savedStates,
  settledSandbox,
} from "./sandboxes.ts";
export {
  type ContentOptions,
  downloadArchive,
  downloadFile,
  downloadImage,
  type Inspected,
  imageHas,
  imageIdOf,
  listDirectory,
  uploadContent,
  uploadFile,
} from "./transfers.ts";
export type * from "./types.ts";
