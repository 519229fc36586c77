"""Use of a private part of Dagster's web server: middleware around its application.

What the middleware refuses belongs to `cli.webserver`.
"""

from collections.abc import Callable

from starlette.types import ASGIApp


def run_webserver(wrap: Callable[[ASGIApp], ASGIApp]) -> None:
    """Run `dagster-webserver`, with the options of the command line and a middleware.

    The program creates its application itself and has no option for a middleware.

    Args:
        wrap: Returns the application with the middleware around it.
    """
    from dagster_webserver import cli

    create_app: Callable[..., ASGIApp] = vars(cli)["create_app_from_workspace_process_context"]

    def create_wrapped_app(*arguments: object, **options: object) -> ASGIApp:
        return wrap(create_app(*arguments, **options))

    vars(cli)["create_app_from_workspace_process_context"] = create_wrapped_app
    cli.cli(auto_envvar_prefix="DAGSTER_WEBSERVER")
