import type { ComponentType } from "preact";
import { useRoute } from "../browser/router.ts";
import { useSession } from "../data/session.ts";
import { OperationList } from "../operations/list.tsx";
import { PageHeader } from "../parts/breadcrumbs.tsx";
import { Empty } from "../parts/empty.tsx";
import { Tabs } from "../parts/tabs.tsx";
import { HealthPart } from "./health.tsx";
import "./appliance.css";
import { NowPart } from "./now.tsx";
import { SpacePart } from "./space.tsx";
import { TokensPart } from "./tokens.tsx";

interface Part {
  readonly id: string;
  readonly label: string;
  readonly isForOperators?: true;
  readonly Part: ComponentType;
}

const NOW: Part = { id: "now", label: "Now", Part: NowPart };
const PARTS: readonly Part[] = [
  NOW,
  { id: "space", label: "Space", Part: SpacePart },
  { id: "operations", label: "Operations", Part: OperationsPart },
  { id: "tokens", label: "Tokens", isForOperators: true, Part: TokensPart },
  { id: "health", label: "Health", isForOperators: true, Part: HealthPart },
];

function OperationsPart() {
  return (
    <OperationList
      none={
        <Empty
          title="No operations yet"
          text="Imports, runs and checkpoints are operations. Begin with an image:"
          command="coppice image import docker.io/library/python:3.12-slim --tag python"
        />
      }
    />
  );
}

/** The appliance as a whole: what runs and waits, what takes space, what was done, who may do it, and how it is. */
export function View() {
  const { segments } = useRoute();
  const { may } = useSession();
  const partId = segments[1] ?? NOW.id;
  const current = PARTS.find(({ id }) => id === partId) ?? NOW;
  const isOperator = may("operator");
  // A link to an operator's part shows which scope it needs.
  const visible = PARTS.filter((part) => isOperator || part.isForOperators !== true || part === current);
  const tabs = visible.map(({ id, label }) => ({ id, label, href: id === NOW.id ? "/appliance" : `/appliance/${id}` }));
  return (
    <>
      <PageHeader heading="Appliance" title={current === NOW ? "Appliance" : `${current.label} · Appliance`} />
      <Tabs label="Parts of the appliance" tabs={tabs} current={current.id} />
      <current.Part key={current.id} />
    </>
  );
}
