import type { TSchema } from "@sinclair/typebox";
import { ErrorObject } from "../errors.ts";
import { BranchesEnd, BranchImage, BranchOperation, BranchRow, ImageDeletion } from "../v1/schema/branches.ts";
import { EVENT_SCHEMAS, OperationEvent } from "../v1/schema/events.ts";
import { FileResponse, UploadedFile } from "../v1/schema/files.ts";
import { DiffItem, ImageDetails, ImageDiff, ImageStep } from "../v1/schema/history.ts";
import { Image, ImportRequest, LoadRequest, SetTagRequest } from "../v1/schema/images.ts";
import { DirectoryListing, EntryTypeName, GrepMatch, GrepResult, ListingItem } from "../v1/schema/inspection.ts";
import {
  CheckpointRequest,
  InstanceFile,
  InstanceStatsSchema,
  PtySize,
  Resources,
  SpawnRequest,
} from "../v1/schema/instances.ts";
import { NetworkAudit, NetworkEntry, NetworkRequest, NetworkRule, NetworkVerdict } from "../v1/schema/network.ts";
import {
  CheckpointOperationRequest,
  ImportOperationRequest,
  InstanceOperationRequest,
  OperationRequest,
} from "../v1/schema/operation-requests.ts";
import {
  AcceptedOperation,
  CheckpointResult,
  ImportResult,
  InstanceResult,
  IsolationSchema,
  LogLine,
  Operation,
  OperationKindSchema,
  OperationStatusSchema,
  OutputEncoding,
  OutputObject,
} from "../v1/schema/operations.ts";
import {
  Collection,
  Finding,
  HealthReport,
  IssuedToken,
  Load,
  Space,
  Token,
  TokenRequest,
} from "../v1/schema/operator.ts";
import { Process, ProcessDetails, ProcessRequest, StartedProcess, StdinRequest } from "../v1/schema/processes.ts";

/**
 * Schemas by the names that they have in the description of the API, and so in clients that are generated from it. A schema
 * that is not here is named after the place of its first use.
 */
export const NAMED_SCHEMAS: Readonly<Record<string, TSchema>> = {
  AcceptedOperation,
  AskedCheckpoint: CheckpointOperationRequest,
  AskedImport: ImportOperationRequest,
  AskedInstance: InstanceOperationRequest,
  AskedOperation: OperationRequest,
  BranchesEnd,
  BranchImage,
  BranchOperation,
  BranchRow,
  CheckpointRequest,
  CheckpointResult,
  Collection,
  DiffItem,
  DirectoryListing,
  EntryType: EntryTypeName,
  Error: ErrorObject,
  FileResponse,
  Finding,
  GrepMatch,
  GrepResult,
  HealthReport,
  Image,
  ImageDeletion,
  ImageDetails,
  ImageDiff,
  ImageStep,
  ImportRequest,
  ImportResult,
  InstanceFile,
  InstanceResult,
  InstanceStats: InstanceStatsSchema,
  Isolation: IsolationSchema,
  IssuedToken,
  ListingItem,
  Load,
  LoadRequest,
  LogLine,
  NetworkAudit,
  NetworkEntry,
  NetworkRequest,
  NetworkRule,
  NetworkVerdict,
  Operation,
  OperationEvent,
  OperationKind: OperationKindSchema,
  OperationStatus: OperationStatusSchema,
  OutputEncoding,
  OutputObject,
  Process,
  ProcessDetails,
  ProcessRequest,
  Resources,
  SetTagRequest,
  Space,
  SpawnRequest,
  StartedProcess,
  StdinRequest,
  TerminalSize: PtySize,
  Token,
  TokenRequest,
  UploadedFile,
  ...EVENT_SCHEMAS,
};
