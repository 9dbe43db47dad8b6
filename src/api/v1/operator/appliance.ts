import { Elysia } from "elysia";
import { given } from "../../../domain/given.ts";
import { isoTime } from "../../../domain/ids.ts";
import { LIMIT_DEFAULT } from "../../../domain/tree/listing.ts";
import type * as appliance from "../../../service/operator/appliance.ts";
import { about, checked, jsonSpec } from "../../route.ts";
import { Collection, FiguresQuery, HealthReport, Load, Space } from "../schema/operator.ts";
import type { Surface } from "../surface.ts";

const SCOPE = "operator";

const LOAD = {
  query: checked(FiguresQuery),
  ...about({
    id: "load",
    tag: "Operator",
    summary: "Read what runs and waits, by account, and its share of the budget",
    responses: { 200: jsonSpec("the load at this moment", Load) },
  }),
};

const SPACE = {
  query: checked(FiguresQuery),
  ...about({
    id: "space",
    tag: "Operator",
    summary: "Read what uses space on the disk; the sums are at most some seconds old",
    responses: { 200: jsonSpec("the disk, and what is stored", Space) },
  }),
};

const PREVIEW = {
  ...about({
    id: "previewCollection",
    tag: "Operator",
    summary: "Read what a collection would free",
    responses: { 200: jsonSpec("what would be removed", Collection) },
  }),
};

const COLLECT = {
  ...about({
    id: "collectSpace",
    tag: "Operator",
    summary: "Remove expired images and files, and layers that no image needs; answered when it is done",
    responses: { 200: jsonSpec("what was removed", Collection) },
  }),
};

const HEALTH = {
  ...about({
    id: "hostHealth",
    tag: "Operator",
    summary: "Check the prerequisites on this host, as `coppice doctor --no-boot` does; at most half a minute old",
    responses: { 200: jsonSpec("the findings", HealthReport) },
  }),
};

export function applianceRoutes(surface: Surface) {
  const { appliance } = surface.service;
  return new Elysia({ prefix: "/operator" })
    .use(surface.access)
    .get("/load", async ({ query: { limit = LIMIT_DEFAULT } }) => loadOf(await appliance.load(limit)), {
      reads: SCOPE,
      ...LOAD,
    })
    .get("/space", async ({ query: { limit = LIMIT_DEFAULT } }) => spaceOf(await appliance.space(limit)), {
      reads: SCOPE,
      ...SPACE,
    })
    .get(
      "/collection",
      async ({ request, server }) => {
        // Reading the sizes of many layers is slow.
        server?.timeout(request, 0);
        return collectionOf(await appliance.collection());
      },
      { reads: SCOPE, ...PREVIEW },
    )
    .post(
      "/collection",
      async ({ request, server, principal }) => {
        server?.timeout(request, 0);
        return collectionOf(await appliance.collect(principal));
      },
      { writes: SCOPE, ...COLLECT },
    )
    .get("/health", async () => healthOf(await appliance.health()), { reads: SCOPE, ...HEALTH });
}

function loadOf({ budget, used, machines, accounts }: appliance.Load): Load {
  return {
    memory_bytes: { budget: budget.memoryBytes, used: used.memoryBytes },
    vcpus: { budget: budget.vcpus, used: used.vcpus },
    machines: {
      in_use: machines.inUse,
      waiting: machines.waiting,
      ready: machines.ready,
      pool_size: machines.poolSize,
    },
    accounts: accounts.map((each) => ({
      account: each.accountId,
      executing: each.executingCount,
      pending: each.pendingCount,
      ...(each.oldestPendingAt === null ? {} : { oldest_pending_at: isoTime(each.oldestPendingAt) }),
      memory_bytes: each.memoryBytes,
      vcpus: each.vcpus,
    })),
  };
}

function spaceOf({ disk, totals, accounts, images }: appliance.Space): Space {
  return {
    disk: {
      total_bytes: disk.totalBytes,
      free_bytes: disk.freeBytes,
      reserve_bytes: disk.reserveBytes,
      ...given({ files: disk.files }),
    },
    stored: {
      images: totals.imageCount,
      layers: totals.layerCount,
      layer_bytes: totals.layerBytes,
      merged_layers: totals.mergedLayerCount,
      merged_layer_bytes: totals.mergedLayerBytes,
      files: totals.fileCount,
      file_bytes: totals.fileBytes,
    },
    accounts: accounts.map((each) => ({
      account: each.accountId,
      images: each.imageCount,
      layer_bytes: each.layerBytes,
      merged_layer_bytes: each.mergedLayerBytes,
      files: each.fileCount,
      file_bytes: each.fileBytes,
    })),
    images: images.map(({ id, accountId, tag, sizeBytes, createdAt }) => ({
      uuid: id,
      account: accountId,
      ...given({ tag }),
      size_bytes: sizeBytes,
      created_at: isoTime(createdAt),
    })),
  };
}

function collectionOf({ reclaimed, retention }: appliance.Collection): Collection {
  const { images, layers, layerBytes, files, fileBytes, memoryImages, memoryImageBytes } = reclaimed;
  const { untaggedTtlMs, filesTtlMs, memoryTtlMs } = retention;
  return {
    images,
    layers,
    layer_bytes: layerBytes,
    files,
    file_bytes: fileBytes,
    memory_images: memoryImages,
    memory_image_bytes: memoryImageBytes,
    bytes: layerBytes + fileBytes + memoryImageBytes,
    images_memory_ttl: memoryTtlMs / 1000,
    ...(untaggedTtlMs === null ? {} : { images_untagged_ttl: untaggedTtlMs / 1000 }),
    ...(filesTtlMs === null ? {} : { files_ttl: filesTtlMs / 1000 }),
  };
}

function healthOf({ healthy, checkedAt, findings }: appliance.Health): HealthReport {
  return {
    healthy,
    checked_at: isoTime(checkedAt),
    findings: findings.map(({ fix, ...finding }) => ({ ...finding, ...given({ fix }) })),
  };
}
