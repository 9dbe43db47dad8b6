"""LangChain's standard suite for sandboxes, with langchain-e2b's backend."""

import pytest
from e2b import Sandbox
from langchain_e2b import E2BSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests


class TestStandard(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self):
        with Sandbox.create(timeout=900) as sandbox:
            yield E2BSandbox(sandbox=sandbox)
