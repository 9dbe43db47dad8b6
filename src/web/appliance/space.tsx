import { readBranches } from "../../client/branches.ts";
import { answerOf } from "../../client/client.ts";
import type { BranchImage, Space } from "../../client/types.ts";
import { Link } from "../browser/router.ts";
import { api } from "../data/api.ts";
import { useResource } from "../data/resource.ts";
import { useSession } from "../data/session.ts";
import { Empty } from "../parts/empty.tsx";
import { Age, Bytes } from "../parts/figure.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { type Column, Table } from "../parts/lists/table.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { Badge } from "../parts/status-mark.tsx";
import { bytesText, countOf, countText, shortId } from "../text/format.ts";
import { CollectionSection } from "./collection.tsx";
import { DiskBar } from "./disk-bar.tsx";
import { OperatorNote } from "./operator-note.tsx";
import { Section } from "./section.tsx";

/** Rows of each table. */
const ROWS_MAX = 50;

/** Use of the disk: by kind and account for operators, otherwise one's own images. */
export function SpacePart() {
  const { may } = useSession();
  if (may("operator")) return <DiskSections />;
  return (
    <>
      {may("images:read") ? <OwnSpace /> : null}
      <OperatorNote>
        Operators see the use of the disk, by kind and by account, and what a collection would free.
      </OperatorNote>
    </>
  );
}

function DiskSections() {
  const space = useResource("appliance-space", (signal) =>
    answerOf(api.v1.operator.space.get({ query: { limit: ROWS_MAX }, fetch: { signal } })),
  );
  const { account } = useSession();
  if (space.value === undefined) {
    if (space.problem === undefined) return <Skeleton lines={6} label="Loading the space" />;
    return <ProblemNote title="The space could not be read" problem={space.problem} onRetry={space.reload} />;
  }
  const { disk, stored, accounts, images } = space.value;
  return (
    <>
      {space.problem === undefined ? null : <ProblemNote problem={space.problem} onRetry={space.reload} />}
      <Section heading="Disk">
        <DiskBar disk={disk} stored={stored} />
      </Section>
      <CollectionSection onCollected={space.reload} />
      <Section
        heading="Accounts"
        about="What their images added. A layer that accounts share, such as a base image, counts for each of them."
      >
        {accounts.length === 0 ? (
          <p class="muted">No account has stored anything yet.</p>
        ) : (
          <Table label="Space by account" columns={ACCOUNTS} rows={accounts} rowKey={(row) => row.account} />
        )}
      </Section>
      <Section heading="Largest images" about="By the size that each adds to its parent.">
        {images.length === 0 ? (
          <NoImages />
        ) : (
          <Table label="Largest images" columns={imageColumns(account)} rows={images} rowKey={({ uuid }) => uuid} />
        )}
      </Section>
    </>
  );
}

const ACCOUNTS: readonly Column<Space["accounts"][number]>[] = [
  { id: "account", label: "Account", isWide: true, cell: ({ account }) => account },
  { id: "images", label: "Images", isFigure: true, cell: ({ images }) => countText(images) },
  { id: "layers", label: "Layers", isFigure: true, cell: ({ layer_bytes }) => <Bytes value={layer_bytes} /> },
  {
    id: "merged",
    label: "Merged layers",
    isFigure: true,
    cell: ({ merged_layer_bytes }) => <Bytes value={merged_layer_bytes} />,
  },
  { id: "files", label: "Files", isFigure: true, cell: ({ file_bytes }) => <Bytes value={file_bytes} /> },
];

function imageColumns(own: string): readonly Column<Space["images"][number]>[] {
  return [
    {
      id: "image",
      label: "Image",
      isWide: true,
      // The images of others do not exist for this session.
      cell: (image) => <ImageName {...image} isLink={image.account === own} />,
    },
    { id: "account", label: "Account", cell: ({ account }) => account },
    { id: "made", label: "Created", isFigure: true, cell: ({ created_at }) => <Age at={created_at} /> },
    { id: "size", label: "Size added", isFigure: true, cell: ({ size_bytes }) => <Bytes value={size_bytes} /> },
  ];
}

interface NamedImage {
  readonly uuid: string;
  readonly tag?: string;
  readonly about?: string;
}

function ImageName({ uuid, tag, about, isLink }: NamedImage & { readonly isLink: boolean }) {
  const name = (
    <>
      <span class="mono">{shortId(uuid)}</span>
      {tag === undefined ? null : (
        <>
          {" "}
          <Badge tone="accent">
            <GuestText text={tag} hasTitle />
          </Badge>
        </>
      )}
    </>
  );
  return (
    <div class="ellipsis" title={uuid}>
      {isLink ? <Link href={`/images/${uuid}`}>{name}</Link> : name}
      {about === undefined ? null : (
        <div class="muted small">
          <GuestText text={about} isMono hasTitle />
        </div>
      )}
    </div>
  );
}

interface OwnImages {
  readonly count: number;
  readonly bytes: number;
  /** the largest first */
  readonly largest: readonly BranchImage[];
}

/** Reads all images of the account, of which the largest are kept. */
async function ownImages(signal: AbortSignal): Promise<OwnImages> {
  let count = 0;
  let bytes = 0;
  let largest: BranchImage[] = [];
  for await (const rows of readBranches(api, { signal })) {
    const images = rows.filter((row) => row.type === "image");
    count += images.length;
    bytes += images.reduce((sum, { size_bytes }) => sum + size_bytes, 0);
    largest = [...largest, ...images].sort((a, b) => b.size_bytes - a.size_bytes).slice(0, ROWS_MAX);
  }
  return { count, bytes, largest };
}

const OWN_COLUMNS: readonly Column<BranchImage>[] = [
  { id: "image", label: "Image", isWide: true, cell: (image) => <ImageName {...image} isLink /> },
  { id: "made", label: "Created", isFigure: true, cell: ({ created_at }) => <Age at={created_at} /> },
  { id: "size", label: "Size added", isFigure: true, cell: ({ size_bytes }) => <Bytes value={size_bytes} /> },
];

function OwnSpace() {
  const { account } = useSession();
  const { value, problem, reload } = useResource("appliance-own-space", ownImages);
  if (value === undefined) {
    if (problem === undefined) return <Skeleton lines={6} label="Loading your images" />;
    return <ProblemNote title="Your images could not be read" problem={problem} onRetry={reload} />;
  }
  const { count, bytes, largest } = value;
  return (
    <Section
      heading="Your images"
      about={`${countOf(count, "image")} of the account ${account}, ${bytesText(bytes)} in all. The largest come first.`}
    >
      {largest.length === 0 ? (
        <NoImages />
      ) : (
        <Table label="Your largest images" columns={OWN_COLUMNS} rows={largest} rowKey={({ uuid }) => uuid} />
      )}
    </Section>
  );
}

function NoImages() {
  return (
    <Empty
      title="No images yet"
      text="Images are imported from a registry or made by runs."
      command="coppice image import docker.io/library/python:3.12-slim --tag python"
    />
  );
}
