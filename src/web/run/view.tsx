import "./run.css";
import { useRoute } from "../browser/router.ts";
import { useSession } from "../data/session.ts";
import { OperationList } from "../operations/list.tsx";
import { PageHeader } from "../parts/breadcrumbs.tsx";
import { ButtonLink } from "../parts/button.tsx";
import { Empty } from "../parts/empty.tsx";
import { FormView } from "./form/form-view.tsx";
import { RunPage } from "./page.tsx";

/** Operations, the form of a run, and one operation. */
export function View() {
  const { segments } = useRoute();
  const [, id] = segments;
  if (id === undefined) return <Runs />;
  if (id === "new") return <FormView />;
  return <RunPage key={id} id={id} />;
}

function Runs() {
  const { may } = useSession();
  const newRun = may("instances:spawn") ? (
    <ButtonLink href="/runs/new" tone="primary" icon="plus">
      New run
    </ButtonLink>
  ) : null;
  return (
    <>
      <PageHeader heading="Runs" actions={newRun} />
      <OperationList
        none={
          <Empty
            title="No runs yet"
            text="A run executes a command in a sandbox with the files of an image. Its result is a new image."
            command="coppice run --image tag:busybox -- uname -a"
            action={newRun}
          />
        }
      />
    </>
  );
}
