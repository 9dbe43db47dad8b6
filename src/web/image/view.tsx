import "./image.css";
import "./changes/changes.css";
import "./text.css";
import { answerOf } from "../../client/client.ts";
import { Link, useRoute } from "../browser/router.ts";
import { addressOf, api } from "../data/api.ts";
import { useChanges } from "../data/changes.ts";
import { useResource } from "../data/resource.ts";
import { useSession } from "../data/session.ts";
import { PageHeader } from "../parts/breadcrumbs.tsx";
import { ButtonLink } from "../parts/button.tsx";
import { Identifier } from "../parts/copy-button.tsx";
import { Empty } from "../parts/empty.tsx";
import { Age, Bytes } from "../parts/figure.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { Tabs } from "../parts/tabs.tsx";
import { shortId } from "../text/format.ts";
import { ChangesView } from "./changes/changes.tsx";
import { Files } from "./files/files.tsx";
import { History } from "./history.tsx";
import { type ImageLink, type ImageViewName, linkTo, parseLink } from "./link.ts";
import { Search } from "./search/search.tsx";

const TABS: readonly { readonly id: ImageViewName; readonly label: string }[] = [
  { id: "files", label: "Files" },
  { id: "changes", label: "Changes" },
  { id: "history", label: "History" },
  { id: "search", label: "Search" },
];

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

/** One image: its files, changes, history, and a search. */
export function View() {
  const { segments } = useRoute();
  // The raw query: paths are bytes, which its decoded form would lose.
  const link = parseLink(segments[1] ?? "", location.search);
  return UUID.test(link.image) ? <Image key={link.image} link={link} /> : <NoImage />;
}

function NoImage() {
  return (
    <>
      <PageHeader heading="No such image" />
      <Empty
        title="This link names no image"
        text="The link may be incomplete."
        action={<ButtonLink href="/">Go to branches</ButtonLink>}
      />
    </>
  );
}

function Image({ link }: { readonly link: ImageLink }) {
  const { image, view, path } = link;
  const { value, problem, reload } = useResource(`image ${image}`, (signal) =>
    answerOf(api.v1.images({ uuid: image }).get({ fetch: { signal } })),
  );
  useChanges((change) => {
    if (change.type === "resync" || change.uuid === image) reload();
  });
  const name = value?.tag ?? shortId(image);
  // Files, changes and search are about a path each: tabs keep it, except for the name of a file.
  const tabs = TABS.map((tab) => ({ ...tab, href: linkTo(image, tab.id, tab.id === "search" ? undefined : path) }));
  // The image may have been deleted in the meantime.
  if (problem !== undefined && (value === undefined || problem.status === 404)) {
    return (
      <>
        <PageHeader heading={`Image ${shortId(image)}`} crumbs={crumbsTo(image, shortId(image))} />
        <ProblemNote problem={problem} title="This image cannot be shown" onRetry={reload} />
      </>
    );
  }
  return (
    <div class="image stack gap-4 shrink">
      <PageHeader
        heading={<GuestText text={name} />}
        title={name}
        crumbs={crumbsTo(image, name)}
        about={
          value === undefined ? (
            <Skeleton lines={1} label="Loading the image" />
          ) : (
            <span class="image-about row wrap gap-1-5 muted">
              <Identifier id={image} />
              <span>
                created <Age at={value.created_at} />
              </span>
              <span>
                added <Bytes value={value.size_bytes} />
              </span>
              {value.parent === undefined ? null : (
                <Link href={linkTo(value.parent, "files")}>
                  from <code>{shortId(value.parent)}</code>
                </Link>
              )}
            </span>
          )
        }
        actions={<Actions image={image} />}
      />
      <Tabs label="Parts of the image" tabs={tabs} current={view} />
      <Part link={link} />
    </div>
  );
}

/** Downloads, and what can be started from the image. */
function Actions({ image }: { readonly image: string }) {
  const { may } = useSession();
  return (
    <>
      <ButtonLink icon="download" href={addressOf(`/v1/images/${image}/save`)} download={`${image}.tar`}>
        OCI archive
      </ButtonLink>
      {may("operations:read") ? (
        <ButtonLink icon="download" href={addressOf(`/v1/images/${image}/receipt`)} download={`${image}.receipt.json`}>
          Receipt
        </ButtonLink>
      ) : null}
      {may("instances:spawn") ? (
        <ButtonLink icon="sandbox" href={`/sandboxes/new?image=${image}`}>
          Open a sandbox
        </ButtonLink>
      ) : null}
      {may("instances:spawn") ? (
        <ButtonLink tone="primary" icon="run" href={`/runs/new?image=${image}`}>
          Run here
        </ButtonLink>
      ) : null}
    </>
  );
}

function crumbsTo(image: string, name: string) {
  return [{ label: "Branches", href: `/?image=${image}` }, { label: <GuestText text={name} /> }];
}

function Part({ link }: { readonly link: ImageLink }) {
  switch (link.view) {
    case "files":
      return <Files link={link} />;
    case "changes":
      return <ChangesView key={link.fields.get("against") ?? ""} link={link} />;
    case "history":
      return <History image={link.image} />;
    case "search":
      return <Search link={link} />;
  }
}
